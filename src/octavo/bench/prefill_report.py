"""A run of `octavo bench prefill` as a table and as a picture. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from octavo.bench.plot import draw_spreads, finish_axis, new_figure, write_figure
from octavo.bench.prefill import OURS, PEER, PrefillRun
from octavo.bench.stamp import machine_line, versions_line


def report_lines(run: PrefillRun) -> Iterator[str]:
    """Medians of the rounds (least to most), and ours over each peer's, round by round."""
    engines = run.engines
    yield from run.outcome.lines()
    yield f"{run.model}; {machine_line(run.environment)}; {versions_line(run.environment)}"
    if run.peer is not None:
        yield f"{PEER}: {run.peer.line}"
    yield f"prompt tokens/s up to the first token, median of {len(run.measured[engines[0]])} rounds (least to most)"
    for length in run.lengths:
        told = "   ".join(f"{name} {run.spread(name, length)}" for name in engines)
        ratios = "".join(
            f"   ours ÷ {name} {run.ratio(name, length)}" for name in engines if name != OURS and OURS in engines
        )
        yield f"{length:>6} tokens   {told}{ratios}"
    yield "peak memory, MiB   " + "   ".join(f"{name} {run.peak_mib(name)}" for name in engines)


def plot_prefill(run: PrefillRun, path: Path) -> None:
    """Speed over length. Raises `InvalidRequest` if it cannot be written."""
    figure = new_figure(f"{run.model}: prefill, {run.rounds} rounds (median, least to most)", width=7)
    axis = figure.subplots()
    lengths = sorted(run.lengths)
    for name in run.engines:
        draw_spreads(axis, lengths, [run.spread(name, length) for length in lengths], name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, list(map(str, lengths)))
    axis.set_xlabel("tokens of the prompt")
    axis.set_title("prompt tokens/s")
    finish_axis(axis)
    axis.legend()
    write_figure(figure, path)
