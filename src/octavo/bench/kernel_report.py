"""A run of kernel timings as tables: one per head shape, a line per load."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.bench.kernels import KernelCell, KernelRun
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import versions_line


def report_lines(run: KernelRun) -> Iterator[str]:
    """Markdown. A share is of the measured read ceiling, by the K/V bytes of float16 read once."""
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
        ours = list(dict.fromkeys(name for cell in cells for name in cell.ours))
        peers = list(dict.fromkeys(name for cell in cells for name in cell.peers))
        yield ""
        yield f"{shape.name}, microseconds, median of the replays (least to most)"
        yield ""
        yield "| " + " | ".join(["load", "K/V MB", *ours, *peers, "best peer ÷ ours", "share of ceiling"]) + " |"
        yield "|" + "---|" * (len(ours) + len(peers) + 4)
        for cell in cells:
            yield _line(cell, ours, peers, run.ceiling_gbps)


def cell_line(cell: KernelCell) -> str:
    """One cell, for progress."""
    times = ", ".join(f"{name} {each.median:.2f}" for name, each in (cell.ours | cell.peers).items())
    return f"{cell.shape.name}, {cell.load.name}: {times} µs"


def _line(cell: KernelCell, ours: list[str], peers: list[str], ceiling: float) -> str:
    first = next(iter(cell.ours.values()), None)
    ratio = "" if first is None or cell.best_peer is None else f"{cell.best_peer / first.median:.2f}"
    half = cell.ours.get("f16")
    share = "" if half is None else f"{cell.kv_bytes / half.median / 1e3 / ceiling:.0%}"
    columns = [cell.ours.get(name) for name in ours] + [cell.peers.get(name) for name in peers]
    times = ["" if each is None else _microseconds(each) for each in columns]
    return "| " + " | ".join([cell.load.name, f"{cell.kv_bytes / 1e6:.0f}", *times, ratio, share]) + " |"


def _microseconds(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})"
