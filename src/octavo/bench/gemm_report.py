"""A run of timings of products of few rows as tables: one per weight, a line per count of rows."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.bench.gemm import GemmCell, GemmRun
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import versions_line


def report_lines(run: GemmRun) -> Iterator[str]:
    """Markdown. A floor is the time in which the bfloat16 weight is read at the measured ceiling."""
    stamp = run.environment
    yield from run.outcome.lines()
    yield (
        f"{stamp['device']}; read ceiling {run.ceiling_gbps:,.0f} GB/s; octavo commit {stamp['commit'] or 'unknown'}"
    )
    yield versions_line(stamp)
    for shape in run.shapes:
        cells = [cell for cell in run.cells if cell.shape == shape]
        if not cells:
            continue
        forms = list(dict.fromkeys(form for cell in cells for form in cell.ours))
        floor = cells[0].num_bytes["bf16"] / run.ceiling_gbps / 1e3
        yield ""
        yield f"{shape.name}, {shape.n:,} x {shape.k:,}: microseconds, median (least to most); floor {floor:.1f}"
        yield ""
        yield "| " + " | ".join(["rows", "library bf16", *forms, "library / best bf16"]) + " |"
        yield "|" + "---|" * (len(forms) + 3)
        for cell in cells:
            served = cell.ours.get("bf16", cell.library)
            times = [_text(cell.library), *(_text(cell.ours[form]) if form in cell.ours else "" for form in forms)]
            yield f"| {cell.rows} | " + " | ".join(times) + f" | {cell.library.median / served.median:.2f} |"


def cell_line(cell: GemmCell) -> str:
    """One cell, for progress."""
    times = ", ".join(f"{name} {each.median:.2f}" for name, each in cell.ours.items())
    return f"{cell.shape.name}, {cell.rows} rows: library {cell.library.median:.2f}, {times} µs"


def _text(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})"
