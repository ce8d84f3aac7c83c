"""Kernel timings as records and table."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from octavo.bench.kernel_loads import HeadShape, parse_loads
from octavo.bench.kernel_report import cell_line, report_lines
from octavo.bench.kernels import KernelCell, KernelRun
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp


def test_kernel_timings_come_with_their_spread() -> None:
    shape, load = HeadShape(16, 8, 128), parse_loads("4x1K")[0]
    ours = {"f16": Spread(10.0, 9.0, 12.0), "f16 exact": Spread(20.0, 19.0, 21.0)}
    cell = KernelCell(shape, load, 10**6, ours, {"dense sdpa": Spread(15.0, 14.0, 16.0)}, {"flashinfer": "ValueError"})
    environment = {**environment_stamp(), "device": "a card", "torch": "2", "flashinfer": None}
    run = KernelRun([shape], [load], ["f16"], True, [cell], 1000.0, environment)
    [record] = run.records()
    assert (record["ours_us"], record["peers_us"]) == ({"f16": 10.0, "f16 exact": 20.0}, {"dense sdpa": 15.0})
    assert record["spread_us"] == {"f16": [9.0, 12.0], "f16 exact": [19.0, 21.0], "dense sdpa": [14.0, 16.0]}
    last = list(report_lines(run))[-1]
    assert "| 10.0 (9.0 to 12.0) | 20.0 (19.0 to 21.0) | 15.0 (14.0 to 16.0) | 1.50 | 10% |" in last
    assert cell_line(cell).endswith("f16 10.00, f16 exact 20.00, dense sdpa 15.00 µs")
