"""A serving run as a picture: throughput and latencies over concurrency, with the spread of the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octavo.bench.plot import draw_spreads, finish_axis, new_figure, write_figure

if TYPE_CHECKING:
    from octavo.bench.serving import ServingRun


def plot_serving(run: ServingRun, path: Path) -> None:
    """Draw the cells measured so far to `path`. Raises `InvalidRequest` if it cannot be written."""
    mix = run.protocol.mix
    model = run.endpoint.model if run.endpoint is not None else "no endpoint"
    figure = new_figure(
        f"{model}, {mix.name}: {mix.prompt_tokens} + {mix.max_tokens} tokens, {run.protocol.rounds} rounds "
        f"(median, least to most){'' if run.problem is None else '; INCOMPLETE'}"
    )
    axes = figure.subplots(1, 3)
    cells = run.cells
    at = [each.concurrency for each in cells]
    draw_spreads(axes[0], at, [each.output_tps for each in cells], "output tokens/s")
    for quantile in ("p50", "p95", "p99"):
        ttft = [each.ttft_s[quantile] for each in cells if each.ttft_s]
        draw_spreads(axes[1], [each.concurrency for each in cells if each.ttft_s], ttft, quantile, 1e3)
        itl = [each.itl_s[quantile] for each in cells if each.itl_s]
        draw_spreads(axes[2], [each.concurrency for each in cells if each.itl_s], itl, quantile, 1e3)
    titles = ("output tokens/s", "time to first token, ms", "inter-token latency, ms")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
        axis.set_xlabel("clients")
        axis.set_xticks(at)
        finish_axis(axis)
    axes[1].legend()
    write_figure(figure, path)
