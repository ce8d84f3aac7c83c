"""What the plots of all benchmarks share: the check before anything is measured, spreads as error bars, the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.bench.percentiles import Spread
from octavo.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MOST_LEVEL_LABELS = 3


def check_plot(path: Path) -> None:
    """Refuse, before anything is measured, what would fail after it. Raises `InvalidRequest`."""
    if find_spec("matplotlib") is None:
        raise InvalidRequest("--plot needs matplotlib, which is not installed; pip install 'octavo[bench]'")
    if path.suffix.lower() != ".png":
        raise InvalidRequest(f"--plot is {str(path)!r}; give a file that ends with .png")
    if not path.parent.is_dir():
        raise InvalidRequest(f"--plot is {str(path)!r}; its directory does not exist")


def new_figure(title: str, width: float = 12, height: float = 4) -> Figure:
    """An empty figure, in inches, that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False)
    return figure


def draw_spreads(
    axis: Axes, at: Sequence[float], spreads: Sequence[Spread], label: str, scale: float = 1, *, joined: bool = True
) -> None:
    """Medians as points, a line through them if `joined`, with bars from the least to the most."""
    middle, bars = _with_bars(spreads, scale)
    axis.errorbar(at, middle, yerr=bars, marker="o", capsize=3, label=label, linestyle="-" if joined else "")


def draw_bars(axis: Axes, spreads: Mapping[str, Spread], unit: str) -> None:
    """A bar for each name, as high as its median, with a line from the least to the most."""
    middle, bars = _with_bars(list(spreads.values()), 1)
    axis.bar(list(spreads), middle, yerr=bars, capsize=4, color=[f"C{index}" for index in range(len(spreads))])
    axis.set_title(unit)
    finish_axis(axis, min(each.low for each in spreads.values()))
    if len(spreads) > _MOST_LEVEL_LABELS:
        axis.tick_params("x", rotation=60)


def finish_axis(axis: Axes, least: float = 0) -> None:
    """From 0, with a grid: heights are compared. Lower only if `least` is."""
    if least >= 0:
        axis.set_ylim(bottom=0)
    axis.grid(visible=True, alpha=0.3)


def write_figure(figure: Figure, path: Path) -> None:
    """Raises `InvalidRequest` if the file cannot be written."""
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InvalidRequest(f"--plot {str(path)!r} cannot be written ({error.strerror or error})") from error


def _with_bars(spreads: Sequence[Spread], scale: float) -> tuple[list[float], list[list[float]]]:
    middle = [each.median * scale for each in spreads]
    below = [(each.median - each.low) * scale for each in spreads]
    above = [(each.high - each.median) * scale for each in spreads]
    return middle, [below, above]
