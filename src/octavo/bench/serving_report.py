"""A serving run as a table for people. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.bench.load_mix import RAGGED_RANGE
from octavo.bench.percentiles import Spread
from octavo.bench.serving_figures import CellSummary
from octavo.bench.stamp import machine_line

if TYPE_CHECKING:
    from octavo.bench.serving import ServingRun

BUSY_CLIENT = 0.8  # of one CPU: above it the figures may be the client's own


def report_lines(run: ServingRun) -> Iterator[str]:
    """What was measured, with what, and a block per concurrency: medians of the rounds (least to most)."""
    protocol, mix = run.protocol, run.protocol.mix
    if run.problem is not None:
        yield f"INCOMPLETE: {run.problem}"
    if run.endpoint is not None:
        software = f", {run.endpoint.software}" if run.endpoint.software else ""
        yield f"{run.endpoint.address}{run.endpoint.path}, model {run.endpoint.model}{software}"
    yield f"client: {machine_line(run.environment)}"
    yield (
        f"mix {mix.name}: prompts of {_lengths(mix.name, mix.prompt_tokens)} tokens, at most "
        f"{_lengths(mix.name, mix.max_tokens)} new; {protocol.requests_per_client} requests per client; "
        f"seed {protocol.seed}"
    )
    yield _exactness(run)
    yield from _cautions(run)
    yield f"median of {protocol.rounds} rounds (least to most)"
    for cell in run.cells:
        yield ""
        yield from cell_lines(cell, run)


def cell_lines(cell: CellSummary, run: ServingRun) -> Iterator[str]:
    limits = run.protocol.limits
    counts = f"{cell.completed} completed, {cell.cancelled} cancelled, {cell.failed} failed"
    yield f"concurrency {cell.concurrency}: {counts}, {cell.rounds} good rounds"
    yield f"  output                 {cell.output_tps} tokens/s"
    yield f"  requests               {cell.requests_ps} per s"
    within = f"first token ≤ {limits.ttft_s:g} s, per token ≤ {limits.itl_s:g} s"
    yield f"  goodput                {cell.goodput_rps} per s ({within})"
    for name, spreads in (
        ("time to first token", cell.ttft_s),
        ("inter-token latency", cell.itl_s),
        ("time per output token", cell.tpot_s),
    ):
        if spreads:
            told = "   ".join(f"{quantile} {_milliseconds(spread)}" for quantile, spread in spreads.items())
            yield f"  {name:<22} {told} ms"
    if cell.tokens_per_chunk is not None:
        yield f"  tokens per chunk       {cell.tokens_per_chunk:.2f}; latencies are between chunks, not divided"
    yield f"  client's own load      {cell.client_cpu_share:.0%} of one CPU at most"


def _lengths(mix: str, most: int) -> str:
    return f"{max(1, most // RAGGED_RANGE)} to {most}" if mix == "ragged" else f"{most}"


def _exactness(run: ServingRun) -> str:
    exact = sum(each.exact_prompts for each in run.rounds)
    wrong = sum(each.wrong_prompts for each in run.rounds)
    checked = f"usage confirms {exact} of {exact + wrong} lengths" if exact + wrong else "usage confirms no length"
    return f"prompts: {run.prompts}; {checked}"


def _cautions(run: ServingRun) -> Iterator[str]:
    """What a reader must know before comparing the figures with others'."""
    if run.endpoint is not None and not run.endpoint.ignore_eos:
        yield "ignore_eos is refused here: answers end where the model ends them"
    if not all(each.tokens_from_usage for each in run.rounds):
        yield "usage is missing: output tokens are counted as chunks, a lower bound"
    if run.protocol.mix.name != "ragged":
        lengths = [each.output_lengths for each in run.rounds if each.output_lengths is not None]
        if lengths and (shortest := min(low for low, _ in lengths)) < run.protocol.mix.max_tokens:
            yield f"answers have {shortest} to {max(high for _, high in lengths)} tokens, not all that were asked for"
    if any(each.client_cpu_share > BUSY_CLIENT for each in run.cells):
        yield "the client was busy: these figures may be its own; use a faster machine or fewer clients"
    errors: dict[str, int] = {}
    for each in run.rounds:
        for error, count in each.errors.items():
            errors[error] = errors.get(error, 0) + count
    for error, count in sorted(errors.items(), key=lambda item: -item[1])[:5]:
        yield f"{count} requests failed: {error}"


def _milliseconds(spread: Spread) -> str:
    return f"{spread.median * 1e3:,.1f} ({spread.low * 1e3:,.1f} to {spread.high * 1e3:,.1f})"
