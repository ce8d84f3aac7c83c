"""Gate and up projection with their activation in one kernel: what two products and a gate give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.rows import HalfNormed
from octavo.kernels.triton.fused_rows import gate
from octavo.kernels.triton.gated_product import (
    GatedTile,
    exact_gated_tile,
    gated_tile,
    multiply_gated,
)
from octavo.kernels.triton.skinny_gemm import SkinnyScratch, SkinnyTile, multiply
from octavo.kernels.triton.skinny_table import exact_tile

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TILE = GatedTile(8, 32, 2)
SHARED = 200_000


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("tile", [TILE, GatedTile(4, 16, 1, ahead=3)], ids=str)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 24, 64), (2, 21, 80), (3, 8, 31), (1, 1, 1)])
def test_two_products_and_their_gate_are_rounded_as_on_their_own(rows, n, k, tile, gelu):
    x, weight = draw(rows, k, seed=1), (draw(2 * n, k, seed=2) / k**0.5).half()
    products = (x.half().double() @ weight.double().t()).half().double()
    gate, up = products.chunk(2, dim=-1)
    expected = (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up
    found = multiply_gated(x, weight, gelu, tile)
    assert (found.shape, found.dtype) == ((rows, n), torch.float16)
    # A sum that lies between two float16 may be rounded either way.
    allowed = 2e-3 * expected.abs().max() + 1e-4
    assert (found.double() - expected).abs().max() < allowed
    assert (found.double() * 1.05 - expected).abs().max() > allowed


@pytest.mark.parametrize(("rows", "parts"), [(1, 3), (2, 8)])
def test_rows_that_were_normalised_by_half_have_their_roots_taken(rows, parts):
    x, weight = draw(rows, 64, seed=1), (draw(2 * 21, 64, seed=2) / 8).half()
    half = HalfNormed(x.half(), draw(rows, parts, seed=4).square() * 100, 1e-2)
    normed = x.half().double() / (half.squares.double().sum(1, keepdim=True) / 64 + 1e-2).sqrt()
    gate, up = (normed @ weight.double().t()).half().double().chunk(2, dim=-1)
    expected, allowed = F.silu(gate) * up, 2e-3 * (F.silu(gate) * up).abs().max() + 1e-4
    found = multiply_gated(half, weight, False, TILE).double()
    assert (found - expected).abs().max() < allowed < (found * 1.05 - expected).abs().max()


def test_rows_and_columns_past_the_end_of_a_tile_are_not_read_or_written():
    x, weight = draw(1, 40, seed=3), draw(2 * 10, 48, seed=4).half()
    view = weight[:, :40].contiguous()
    wide = torch.full((3, 40), float("nan"), device=DEVICE)
    wide[0] = x[0]
    assert torch.equal(multiply_gated(wide[:1], view, False, TILE), multiply_gated(x, view, False, TILE))
    assert multiply_gated(x, view, False, TILE).isfinite().all()


def test_only_one_row_and_64_of_a_shape_that_was_measured_take_one_kernel():
    assert gated_tile(1, 6144, 2048, SHARED) is not None
    assert gated_tile(2, 6144, 2048, SHARED) is None
    assert gated_tile(1, 6144, 2049, SHARED) is None
    for rows, served in ((32, False), (33, True), (64, True), (65, False)):
        assert (gated_tile(rows, 6144, 2048, SHARED) is not None) == served
    assert gated_tile(64, 6144, 2048, 1 << 16) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize(("n", "k"), [(6144, 2048), (14336, 4096)])
def test_a_measured_shape_gives_in_bfloat16_what_a_product_and_a_gate_give(n, k, rows):
    x, weight = draw(rows, k, seed=5), (draw(2 * n, k, seed=6) / k**0.5).bfloat16()
    gate, up = F.linear(x.bfloat16(), weight).float().chunk(2, dim=-1)
    expected, tile = F.silu(gate) * up, gated_tile(rows, n, k, SHARED)
    assert tile is not None
    found = multiply_gated(x, weight, False, tile).float()
    assert (found - expected).norm() / expected.norm() < 5e-3 < (found * 1.01 - expected).norm() / expected.norm()


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 40, 64), (20, 70, 96)])
def test_the_exact_form_gives_what_an_exact_product_and_a_gate_give(rows, n, k, gelu):
    x, weight = draw(rows, k, seed=1).half(), (draw(2 * n, k, seed=2) / k**0.5).half()
    tile = SkinnyTile("swapped", 16, 64, 32, 4, 2)
    product = torch.empty(rows, 2 * n, dtype=torch.float16, device=DEVICE)
    multiply(x, weight, product, tile, SkinnyScratch(torch.device(DEVICE)))
    found = multiply_gated(x, weight, gelu, tile)
    assert (found.shape, found.dtype) == ((rows, n), torch.float16)
    assert torch.equal(found, gate(product, gelu, torch.float16))


def test_columns_that_are_split_and_many_rows_take_two_kernels():
    assert exact_gated_tile(64, exact_tile(12288, 2048, 64, SHARED)) is not None
    assert exact_gated_tile(1, exact_tile(2048, 2048, 1, SHARED)) is None
    assert exact_gated_tile(65, exact_tile(12288, 2048, 65, SHARED)) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize(("n", "k"), [(6144, 2048), (14336, 4096), (4100, 1000)])
@pytest.mark.parametrize("gelu", [False, True])
def test_exact_gates_of_few_rows_have_the_bits_of_those_of_many(n, k, gelu):
    x, weight = draw(300, k, seed=5).bfloat16(), (draw(2 * n, k, seed=6) / k**0.5).bfloat16()
    product = torch.empty(300, 2 * n, dtype=torch.bfloat16, device=DEVICE)
    multiply(x, weight, product, exact_tile(2 * n, k, 300, SHARED), SkinnyScratch(torch.device(DEVICE)))
    expected = gate(product, gelu, torch.bfloat16)
    for rows in (1, 8, 17, 64):
        tile = exact_gated_tile(rows, exact_tile(2 * n, k, rows, SHARED))
        assert tile is not None
        assert torch.equal(multiply_gated(x[9 : 9 + rows], weight, gelu, tile), expected[9 : 9 + rows])
