"""Kernel timings as records and table."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from octavo.bench.kernel_loads import HeadShape, parse_loads
from octavo.bench.kernel_report import cell_line, report_lines
from octavo.bench.kernels import KernelCell, KernelRun
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp
from tests.cli.conftest import Run


def test_kernel_timings_come_with_their_spread() -> None:
    shape, load = HeadShape(16, 8, 128), parse_loads("4x1K")[0]
    ours = {"f16": Spread(10.0, 9.0, 12.0), "f16 exact": Spread(20.0, 19.0, 21.0)}
    cell = KernelCell(shape, load, 10**6, ours, {"dense sdpa": Spread(15.0, 14.0, 16.0)}, {"flashinfer": "ValueError"})
    environment = {**environment_stamp(), "device": "a card", "torch": "2", "flashinfer": None}
    run = KernelRun([shape], [load], ["f16"], True, [cell], 1000.0, environment)
    [record] = run.records()
    assert (record["shape"], record["load"], record["kv_bytes"]) == ("Hq16 Hkv8 D128", "4x1K", 10**6)
    assert (record["read_ceiling_gbps"], record["commit"]) == (1000.0, environment["commit"])
    assert record["refused"] == {"flashinfer": "ValueError"}
    assert (record["ours_us"], record["peers_us"]) == ({"f16": 10.0, "f16 exact": 20.0}, {"dense sdpa": 15.0})
    assert record["spread_us"] == {"f16": [9.0, 12.0], "f16 exact": [19.0, 21.0], "dense sdpa": [14.0, 16.0]}
    last = list(report_lines(run))[-1]
    assert "| 10.0 (9.0 to 12.0) | 20.0 (19.0 to 21.0) | 15.0 (14.0 to 16.0) | 1.50 | 10% |" in last
    assert cell_line(cell).endswith("f16 10.00, f16 exact 20.00, dense sdpa 15.00 µs")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(("command", "what"), [("kernels", "kernels"), ("gemm", "products")])
def test_without_a_cuda_device_nothing_is_measured_and_that_is_one_line(octavo: Run, command: str, what: str) -> None:
    done = octavo("bench", command, "--json")
    assert done.status == 2
    assert done.error.startswith(f"octavo: error: {what} are measured on a CUDA device, and torch sees none")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("kernels", "--shapes", "16/7/128"), "16/7/128 has 16 query heads; give a multiple of 7"),
        (("kernels", "--shapes", "16/8"), "the head shape is '16/8'"),
        (("kernels", "--loads", "0x4K"), "the load is '0x4K'"),
        (("kernels", "--kv-dtypes", "f16,turbo4"), "the K/V dtype is 'turbo4'; choose among f16, q8_0, q4_0"),
        (("gemm", "--rows", "1,65"), "the rows are '1,65'; give numbers from 1 to 64"),
    ],
    ids=str,
)
def test_loads_that_cannot_be_are_refused(octavo: Run, arguments: tuple[str, ...], fragment: str) -> None:
    done = octavo("bench", *arguments)
    assert done.status == 2
    assert fragment in done.error
