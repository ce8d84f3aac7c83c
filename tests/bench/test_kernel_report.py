"""Kernel timings as records and table."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from octavo.bench import gemm, kernels
from octavo.bench.kernel_loads import DecodeLoad, HeadShape, parse_loads
from octavo.bench.kernel_report import cell_line, report_lines
from octavo.bench.kernels import KernelCell, KernelRun, bench_kernels
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp
from octavo.errors import EngineFault
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


@pytest.mark.parametrize("error", [EngineFault("a fault"), AssertionError("f16 is off by 1"), KeyboardInterrupt()])
def test_cells_before_a_failure_are_kept_and_the_run_says_that_it_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def measure(run: KernelRun, shape: HeadShape, load: DecodeLoad) -> KernelCell:
        if len(run.cells) == 1:
            raise error
        return KernelCell(shape, load, 10**6, {"f16": Spread(1.0, 1.0, 1.0)}, {}, {})

    monkeypatch.setattr(kernels, "_measure", measure)
    monkeypatch.setattr(kernels, "read_ceiling", lambda: 1000.0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    run = KernelRun([HeadShape(16, 8, 128)], parse_loads("1x1K,4x1K,8x1K"), ["f16"], False)
    with pytest.raises((EngineFault, AssertionError, KeyboardInterrupt)):
        bench_kernels(run, lambda cell: None)
    found = run.as_object()
    said = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{error}"
    assert (found["complete"], found["problem"]) == (False, f"Hq16 Hkv8 D128, 4x1K: {said}")
    assert [cell["load"] for cell in run.records()] == ["1x1K"]
    first, head, versions, *_ = report_lines(run)
    assert first == f"INCOMPLETE: Hq16 Hkv8 D128, 4x1K: {said}"
    assert head.startswith("a card; read ceiling 1,000 GB/s; octavo commit ") and "torch" in versions


def test_products_before_a_failure_are_kept_and_the_run_says_that_it_is_not_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = [gemm.GemmShape("first", 64, 32), gemm.GemmShape("second", 64, 32)]

    def dense(shape: gemm.GemmShape, rows: int, weights: object, scratch: object) -> gemm.GemmCell:
        if shape.name == "second":
            raise AssertionError("a product is off by 1\nand not whole")
        spread = Spread(1.0, 1.0, 1.0)
        return gemm.GemmCell(shape, rows, spread, {"bf16": spread}, {"bf16": 4096}, None)

    monkeypatch.setattr(gemm, "_dense", dense)
    monkeypatch.setattr(gemm, "_weights", lambda shape: None)
    monkeypatch.setattr(gemm, "SkinnyScratch", lambda device: None)
    monkeypatch.setattr(gemm, "read_ceiling", lambda: 1000.0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    run = gemm.GemmRun(shapes, [1, 2], ())
    with pytest.raises(AssertionError, match="a product is off by 1"):
        gemm.bench_gemm(run, lambda cell: None)
    found = run.as_object()
    assert (found["complete"], found["problem"]) == (False, "second, bfloat16: a product is off by 1 and not whole")
    assert [(cell.shape.name, cell.rows) for cell in run.cells] == [("first", 1), ("first", 2)]
