"""Timings of a device's kernels as bandwidths: a chart for each shape, a line for each kernel, the ceiling drawn in.

python -m octavo.bench.bandwidth_plot RESULT.json FILE.png     of what `bench kernels` or `bench gemm` gave with --json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.percentiles import Spread
from octavo.bench.plot import draw_spreads, new_figure, write_figure
from octavo.storage.codecs import CODECS

_DIM = re.compile(r"D(\d+)$")
_COLUMNS = 5
_FEW = 4  # charts that stand two in a row


@dataclass(frozen=True, slots=True)
class BandwidthChart:
    """`lines` has GB/s by kernel and place on the x-axis, whose places `labels` names."""

    title: str
    labels: Sequence[str]
    lines: Mapping[str, Mapping[int, Spread]]


def kernel_charts(records: Iterable[Mapping[str, Any]]) -> list[BandwidthChart]:
    """Of `KernelRun.records()`: for each head shape the loads, those of least K/V first.

    Bytes are what the codec stores. A record without spreads has its medians drawn.
    """
    charts = []
    for shape, cells in _by_shape(records).items():
        cells.sort(key=lambda cell: cell["kv_bytes"])
        found = _DIM.search(shape)
        assert found is not None, shape
        lines: dict[str, dict[int, Spread]] = {}
        for place, cell in enumerate(cells):
            for name, median in (cell["ours_us"] | cell["peers_us"]).items():
                size = cell["kv_bytes"] * (_share(name, int(found[1])) if name in cell["ours_us"] else 1)
                low, high = cell.get("spread_us", {}).get(name, (median, median))
                lines.setdefault(name, {})[place] = _bandwidth(size, Spread(median, low, high))
        charts.append(BandwidthChart(shape, [cell["load"] for cell in cells], lines))
    return charts


def gemm_charts(records: Iterable[Mapping[str, Any]]) -> list[BandwidthChart]:
    """Of the cells of `GemmRun.as_object()`: for each weight the counts of rows. The weight is read once as stored."""
    charts = []
    for shape, cells in _by_shape(records).items():
        lines: dict[str, dict[int, Spread]] = {}
        for place, cell in enumerate(cells):
            for name, each in ({"library bf16": cell["library_us"]} | cell["ours_us"]).items():
                stored = "bf16" if "bf16" in name else name
                lines.setdefault(name, {})[place] = _bandwidth(cell["weight_bytes"][stored], Spread(**each))
        charts.append(BandwidthChart(shape, [str(cell["rows"]) for cell in cells], lines))
    return charts


def plot_bandwidths(title: str, x: str, charts: Sequence[BandwidthChart], ceiling_gbps: float, path: Path) -> None:
    """Draw the charts in rows of up to five. Raises `InvalidRequest` if the file cannot be written."""
    columns = min(len(charts), 2 if len(charts) <= _FEW else _COLUMNS) or 1
    rows = max(1, -(-len(charts) // columns))
    figure = new_figure(f"{title}, GB/s (median, least to most)", width=6.0 * columns, height=4.6 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, chart in zip(axes, charts, strict=False):
        for name, spreads in chart.lines.items():
            draw_spreads(axis, list(spreads), list(spreads.values()), name)
        axis.axhline(ceiling_gbps, color="black", linestyle="--", label=f"read ceiling {ceiling_gbps:,.0f}")
        axis.set_title(chart.title)
        axis.set_xlabel(x)
        axis.set_xticks(
            range(len(chart.labels)), list(chart.labels), rotation=60 if len(chart.labels) > _COLUMNS else 0
        )
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
    for axis in axes[len(charts) :]:
        axis.set_visible(False)
    if charts:
        axes[0].legend(fontsize="small")
    write_figure(figure, path)


def _by_shape(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    shapes: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        shapes.setdefault(record["shape"], []).append(record)
    return shapes


def _share(name: str, dim: int) -> float:
    """Of the bytes of float16, those that the codec in a kernel's name stores."""
    return CODECS[name.split()[0]].bytes_per_row(dim) / (2 * dim)


def _bandwidth(num_bytes: float, microseconds: Spread) -> Spread:
    """GB/s: the least is of the longest time."""
    return Spread(*(num_bytes / each / 1e3 for each in (microseconds.median, microseconds.high, microseconds.low)))


def draw_result(result: Mapping[str, Any], path: Path) -> None:
    """Draw an object that `bench kernels --json` or `bench gemm --json` printed, or the first of its `runs`."""
    run = result.get("runs", [result])[0]
    cells, device = run["cells"], run["environment"].get("device", "no device")
    if cells and "rows" in cells[0]:
        title, x, charts = f"products of few rows on {device}", "rows", gemm_charts(cells)
    else:
        title, x, charts = f"paged decode attention on {device}", "sequences x tokens", kernel_charts(cells)
    plot_bandwidths(title, x, charts, run["read_ceiling_gbps"], path)


if __name__ == "__main__":
    draw_result(json.loads(Path(sys.argv[1]).read_text("utf-8")), Path(sys.argv[2]))
