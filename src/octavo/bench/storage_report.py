"""A run of `octavo bench storage` as a Markdown document: what was measured, how, and what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from octavo.bench.decision import CellVerdict, percent
from octavo.bench.percentiles import Spread
from octavo.bench.served_arm import ServedCell
from octavo.bench.serving_figures import RoundFigures
from octavo.bench.serving_report import BUSY_CLIENT
from octavo.bench.stamp import machine_line, versions_line

if TYPE_CHECKING:
    from octavo.bench.storage import StorageRun

UNSTEADY = math.log(1.2)  # a null spread above it says more of the machine than of the storage
_ARMS = ("paged", "dense")


def document_lines(run: StorageRun) -> Iterator[str]:
    """Everything that a decision must be shown with."""
    load, stamp = run.paired.load, run.environment
    yield f"# Storage of {run.family} on {run.device}, {str(stamp['date'])[:10]}"
    yield ""
    yield f"{machine_line(stamp)}; {versions_line(stamp)}."
    yield ""
    yield f"{run.settings}. Command:"
    yield ""
    yield f"    {run.command}"
    yield ""
    yield (
        f"{run.paired.rounds} rounds, each of paged, dense and paged again in rotating order, each on a fresh server; "
        f"{load.requests_per_client} request{'s'[: load.requests_per_client > 1]} per client, {load.max_tokens} new "
        "tokens each. Figures are output tokens/s over the wall time of a cell, its prompts included: median (least to "
        "most). The delta is the median of the rounds' deltas, dense against paged; the null spread is the largest "
        "delta, either way, of paged again against paged."
    )
    yield ""
    yield from _table(run)
    yield ""
    yield from _latencies(run)
    for name, counts in run.paired.routes.items():
        yield f"Routes, {name}: " + ", ".join(f"{route} {count:,}" for route, count in sorted(counts.items())) + "."
    busiest = max((each.figures.client_cpu_s / each.figures.wall_s for each in run.paired.cells), default=0.0)
    busy = "; figures may be its own" if busiest > BUSY_CLIENT else ""
    unsteady = [each.cell for each in run.verdicts if each.null_spread > UNSTEADY]
    if unsteady:
        yield f"The machine was unsteady: only large differences could be told apart in {'; '.join(unsteady)}."
    yield f"The measuring process took {busiest:.0%} of one CPU at most{busy}."
    yield ""
    if run.entry is None:
        yield f"**Nothing is decided**: {run.problem}"
    else:
        assert run.winner is not None
        yield f"**{run.winner.value}** for `auto`: {run.reason}."
        yield ""
        yield f"    {run.entry}"


def _table(run: StorageRun) -> Iterator[str]:
    yield "| cell | rounds | paged | dense | dense against paged | null spread | faster beyond it |"
    yield "|---|---|---|---|---|---|---|"
    if run.verdicts:
        yield from map(_verdict_line, run.verdicts)
        return
    for cell in run.paired.load.cells:
        paged, dense = (_spread(run, cell, arm, lambda figures: figures.output_tps) for arm in _ARMS)
        yield f"| {cell.name} | {_num_good(run, cell)} | {paged} | {dense} | | | |"


def _verdict_line(verdict: CellVerdict) -> str:
    faster = {"candidate": "dense", "baseline": "paged", None: "neither"}[verdict.faster]
    return (
        f"| {verdict.cell} | {len(verdict.deltas)} | {verdict.baseline} | {verdict.candidate} | "
        f"{percent(verdict.delta):+.1f} % | {percent(verdict.null_spread):.1f} % | {faster} |"
    )


def _num_good(run: StorageRun, cell: ServedCell) -> int:
    rounds, _ = run.paired.paired(lambda figures: figures.output_tps)
    return len(rounds[cell.name])


def _latencies(run: StorageRun) -> Iterator[str]:
    """Not decided by, but good to know: over the rounds, each round's median."""
    yield "| cell | first token, ms: paged | dense | time per output token, ms: paged | dense |"
    yield "|---|---|---|---|---|"
    for cell in run.paired.load.cells:
        columns = [_spread(run, cell, arm, figure) for figure in (_first_token_ms, _token_ms) for arm in _ARMS]
        yield f"| {cell.name} | " + " | ".join(columns) + " |"
    yield ""


def _first_token_ms(figures: RoundFigures) -> float | None:
    return None if figures.ttft_s is None else 1e3 * figures.ttft_s.p50


def _token_ms(figures: RoundFigures) -> float | None:
    return None if figures.tpot_s is None else 1e3 * figures.tpot_s.p50


def _spread(run: StorageRun, cell: ServedCell, arm: str, figure: Callable[[RoundFigures], float | None]) -> str:
    """Over the rounds of an arm that count; empty if none gave such a figure."""
    counted = [each for each in run.paired.cells if (each.cell, each.arm, each.problem) == (cell, arm, None)]
    found = [value for each in counted if (value := figure(each.figures)) is not None]
    return str(Spread.of(found)) if found else ""
