"""Kernel timings as a picture: a chart per head shape, a line per kernel over the loads, on a logarithmic scale."""

from __future__ import annotations

from pathlib import Path

from octavo.bench.kernels import KernelRun
from octavo.bench.plot import draw_spreads, new_figure, write_figure


def plot_kernels(run: KernelRun, path: Path) -> None:
    """Draw the cells measured so far. Raises `InvalidRequest` if the file cannot be written."""
    device = run.environment.get("device", "no device")
    title = f"paged decode attention on {device}, µs (median, least to most)"
    figure = new_figure(title, width=6.0 * len(run.shapes), height=5)
    for axis, shape in zip(figure.subplots(1, len(run.shapes), squeeze=False)[0], run.shapes, strict=True):
        cells = [cell for cell in run.cells if cell.shape == shape]
        for name in dict.fromkeys(name for cell in cells for name in (*cell.ours, *cell.peers)):
            times = {
                index: (cell.ours | cell.peers)[name]
                for index, cell in enumerate(cells)
                if name in cell.ours or name in cell.peers
            }
            draw_spreads(axis, list(times), list(times.values()), name, joined=False)
        axis.set_title(shape.name)
        axis.set_yscale("log")
        axis.set_xticks(range(len(cells)), [cell.load.name for cell in cells], rotation=60)
        axis.grid(visible=True, alpha=0.3)
        if cells:
            axis.legend()
    write_figure(figure, path)
