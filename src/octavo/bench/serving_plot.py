"""A serving run as a picture: throughput and latencies over concurrency, with the spread of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.bench.percentiles import Spread
from octavo.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from octavo.bench.serving import ServingRun


def check_plot(path: Path) -> None:
    """Refuse, before anything is measured, what would fail after it. Raises `InvalidRequest`."""
    if find_spec("matplotlib") is None:
        raise InvalidRequest("--plot needs matplotlib, which is not installed; pip install 'octavo[bench]'")
    if path.suffix.lower() != ".png":
        raise InvalidRequest(f"--plot is {str(path)!r}; give a file that ends with .png")
    if not path.parent.is_dir():
        raise InvalidRequest(f"--plot is {str(path)!r}; its directory does not exist")


def plot_serving(run: ServingRun, path: Path) -> None:
    """Draw the cells measured so far to `path`. Raises `InvalidRequest` if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3)
    cells = run.cells
    at = [each.concurrency for each in cells]
    _draw(axes[0], at, [each.output_tps for each in cells], "output tokens/s", 1)
    for quantile in ("p50", "p95", "p99"):
        ttft = [each.ttft_s[quantile] for each in cells if each.ttft_s]
        _draw(axes[1], [each.concurrency for each in cells if each.ttft_s], ttft, quantile, 1e3)
        itl = [each.itl_s[quantile] for each in cells if each.itl_s]
        _draw(axes[2], [each.concurrency for each in cells if each.itl_s], itl, quantile, 1e3)
    titles = ("output tokens/s", "time to first token, ms", "inter-token latency, ms")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
        axis.set_xlabel("clients")
        axis.set_xticks(at)
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
    axes[1].legend()
    mix = run.protocol.mix
    model = run.endpoint.model if run.endpoint is not None else "no endpoint"
    figure.suptitle(
        f"{model}, {mix.name}: {mix.prompt_tokens} + {mix.max_tokens} tokens, {run.protocol.rounds} rounds "
        f"(median, least to most){'' if run.problem is None else '; INCOMPLETE'}",
        parse_math=False,
    )
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InvalidRequest(f"--plot {str(path)!r} cannot be written ({error.strerror or error})") from error


def _draw(axis: Axes, at: Sequence[int], spreads: Sequence[Spread], label: str, scale: float) -> None:
    middle = [each.median * scale for each in spreads]
    below = [(each.median - each.low) * scale for each in spreads]
    above = [(each.high - each.median) * scale for each in spreads]
    axis.errorbar(at, middle, yerr=[below, above], marker="o", capsize=3, label=label)
