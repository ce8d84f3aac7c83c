"""Stores of encoded rows, filled by torch and by the compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.kernels.cpu.attention import AttentionKernel, AttentionStep, Placement, StoredRows
from octavo.storage.codecs import CODECS

CPU = torch.device("cpu")
ENCODED = ("q8_0", "q4_0", "turbo4")
DIMS = (16, 48, 64, 80, 96, 128, 256, 272, 512)


def hard_values(dim: int) -> Tensor:
    """[80, 3, D]: normal rows of every size, and rows that are zero, tiny, huge, equal, tied, or not finite."""
    generator = torch.Generator().manual_seed(dim)
    x = torch.randn(80, 3, dim, generator=generator) * torch.logspace(-8, 3, 80).view(80, 1, 1)
    x[0] = 0.0
    x[1, :, ::2] = -0.0
    x[2] = 3.5
    x[3] = -3.5
    x[4] = torch.arange(dim).remainder(17) - 8.0
    x[5] = (torch.arange(dim).remainder(255) - 127) / 2
    x[6, 0] = 1e9
    x[7, 1, 5] = float("nan")
    x[8, 1, dim - 1] = float("inf")
    x[9, 2, 0] = -float("inf")
    x[10, :, 3] = 60000.0
    x[11] = 1e-40
    return x


def assert_kernels_store_what_torch_stores(name: str, dim: int) -> None:
    values = hard_values(dim)
    count, heads = values.shape[:2]
    by_torch, by_kernels = (CODECS[name].allocate(count + 20, heads, dim, CPU) for _ in range(2))
    for plane in (*by_torch.planes().values(), *by_kernels.planes().values()):
        plane.fill_(3)
    by_torch.write_run(10, values)
    rows = by_kernels.for_kernels()
    assert rows is not None
    kernel = AttentionKernel(heads, heads, 1.0, None, None)
    kernel.store(values, rows, AttentionStep([Placement(0, count, 0, base=10)]))
    for plane, expected in by_torch.planes().items():
        got = by_kernels.planes()[plane]
        assert torch.equal(got.isnan(), expected.isnan()), f"{plane} of {dim}"
        assert torch.equal(got.float().nan_to_num(), expected.float().nan_to_num()), f"{plane} of {dim}"


def assert_kernels_read_what_torch_reads(name: str, dim: int) -> None:
    """Each token sees itself only, so that what attention returns is its value."""
    values = hard_values(dim)
    count, heads = values.shape[:2]
    store = CODECS[name].allocate(count, heads, dim, CPU)
    store.write_run(0, values)
    rows = store.for_kernels()
    assert rows is not None
    kernel = AttentionKernel(heads, heads, 1.0, 1, None)
    out = torch.full((count, heads, dim), float("nan"))
    zeros = torch.zeros(count, heads, dim)
    kernel.run(zeros, StoredRows(zeros), rows, AttentionStep([Placement(0, count, 0)]), out)
    expected = CODECS[name].round_trip(values)
    finite = expected.isfinite()
    assert torch.equal(out.isfinite(), finite)
    assert torch.equal(out[finite], expected[finite])
    assert finite.float().mean() > 0.9
