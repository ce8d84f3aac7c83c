"""A few figures with their spread as a picture: a chart for each unit, a bar for each name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from octavo.bench.percentiles import Spread
from octavo.bench.plot import draw_bars, new_figure, write_figure


def plot_figures(title: str, charts: Mapping[str, Mapping[str, Spread]], path: Path) -> None:
    """`charts` has figures by unit and name. Raises `InvalidRequest` if the file cannot be written."""
    figure = new_figure(f"{title} (median, least to most)", width=3.5 * len(charts))
    for axis, (unit, spreads) in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts.items(), strict=True):
        draw_bars(axis, spreads, unit)
    write_figure(figure, path)
