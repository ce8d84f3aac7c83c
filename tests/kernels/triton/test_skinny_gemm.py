"""Skinny products against float64: under Triton's interpreter, or for real where there is a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton.skinny_gemm import SkinnyScratch, SkinnyTile, multiply, multiply_codes, unpack
from octavo.kernels.triton.skinny_pack import CodeMatrix, pack_codes, packed_bytes, unpack_codes
from octavo.kernels.triton.skinny_table import ROWS, codes_tiles, dense_tiles, exact_tile

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DENSE = {
    "reduce": SkinnyTile("reduce", 4, 8, 128, 2),
    "reduce-ahead": SkinnyTile("reduce", 4, 8, 32, 2, 3, lets_in=False),
    "reduce-split": SkinnyTile("reduce", 4, 8, 64, 2, 2, splits=3),
    "dot": SkinnyTile("dot", 16, 16, 64, 4, 2),
    "dot-split": SkinnyTile("dot", 16, 32, 32, 4, 2, splits=2),
    "swapped": SkinnyTile("swapped", 8, 64, 64, 4, 2),
    "swapped-split": SkinnyTile("swapped", 16, 64, 32, 4, 3, splits=3),
}
CODES = {
    "swapped": SkinnyTile("swapped", 16, 64, 0, 4, 2, splits=2),
    "reduce": SkinnyTile("reduce", 4, 16, 128, 2, splits=2),
}


def run(function, x, weight, n, tile, dtype=torch.float32):
    scratch = SkinnyScratch(DEVICE)
    scratch.reserve(tile, len(x), n)
    out = torch.full((len(x), n), float("nan"), dtype=dtype, device=DEVICE)
    function(x, weight, out, tile, scratch)
    again = torch.full_like(out, float("nan"))
    function(x, weight, again, tile, scratch)
    assert torch.equal(out, again)
    return out.double()


def operands(rows, n, k, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=generator)
    return x.to(DEVICE), torch.randn(n, k, generator=generator).to(DEVICE, dtype)


def error(out, expected):
    return ((out - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("shape", [(3, 37, 100), (1, 1, 8)], ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("tile", DENSE.values(), ids=DENSE)
@pytest.mark.parametrize("dtype", [torch.float16] + [torch.bfloat16] * GPU, ids=str)
def test_a_product_of_any_shape_equals_the_oracle(shape, tile, dtype):
    x, weight = operands(*shape, dtype)
    expected = x.to(dtype).double() @ weight.double().t()
    out = run(multiply, x, weight, shape[1], tile)
    assert error(out, expected) < 1e-5 < error(out * 1.01, expected)


@pytest.mark.parametrize("name", ["dot-split", "swapped"])
def test_rows_of_several_tiles_are_all_multiplied(name):
    x, weight = operands(37, 70, 96, torch.float16)
    expected = x.half().double() @ weight.double().t()
    assert error(run(multiply, x, weight, 70, DENSE[name]), expected) < 1e-5


@pytest.mark.parametrize("name", ["reduce-split", "dot", "swapped-split"])
def test_rows_may_lie_apart_and_results_be_rounded(name):
    wide, weight = operands(3, 33, 80, torch.float16)
    x, rows = wide[:, :48], weight[:, :48].contiguous()
    out = torch.full((3, 50), float("nan"), dtype=torch.float16, device=DEVICE)
    scratch = SkinnyScratch(DEVICE)
    scratch.reserve(DENSE[name], 3, 33)
    multiply(x, rows, out[:, 7:40], DENSE[name], scratch)
    expected = x.half().double() @ rows.double().t()
    assert error(out[:, 7:40].double(), expected) < 1e-3
    assert out[:, :7].isnan().all() and out[:, 40:].isnan().all()


@pytest.mark.parametrize("tile", DENSE.values(), ids=DENSE)
def test_a_product_may_be_added_to_what_is_there(tile):
    x, weight = operands(3, 37, 100, torch.float16)
    total = torch.randn(3, 37, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    expected = total.double() + x.half().double() @ weight.double().t()
    scratch = SkinnyScratch(DEVICE)
    scratch.reserve(tile, 3, 37)
    multiply(x, weight, total, tile, scratch, add=True)
    assert error(total.double(), expected) < 1e-5


@pytest.mark.parametrize("name", ["reduce", "reduce-ahead"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("n", "k"), [(37, 100), (64, 24)])
def test_a_sum_that_is_left_half_normed_is_multiplied_as_its_norm(rows, n, k, name):
    tile, scratch = DENSE[name], SkinnyScratch(DEVICE)
    x, first = operands(rows, n, k, torch.float16)
    total, second = operands(rows, 20, n, torch.float16, seed=1)
    norm = torch.rand(n, generator=torch.Generator().manual_seed(6)).to(DEVICE) + 0.5
    whole = total.double() + x.half().double() @ first.double().t()
    half = tile.half_normed(total, torch.float16, 1e-2)
    multiply(x, first, total, tile, scratch, add=True, leaves=(norm, half))
    assert error(total.double(), whole) < 1e-5
    assert error(half.squares.double().sum(1), whole.square().sum(1)) < 1e-5
    assert error(half.weighted.double(), whole * norm.double()) < 1e-3
    out = torch.full((rows, 20), float("nan"), device=DEVICE)
    multiply(half, second, out, tile, scratch)
    normed = half.weighted.double() / (whole.square().mean(1, keepdim=True) + 1e-2).sqrt()
    expected = normed @ second.double().t()
    assert error(out.double(), expected) < 1e-5 < error(out.double() * 1.01, expected)


def test_only_programs_that_see_whole_rows_leave_or_take_half_a_norm():
    assert [name for name, tile in DENSE.items() if tile.whole_rows] == ["reduce", "reduce-ahead"]
    x, weight = operands(1, 8, 32, torch.float16)
    half = DENSE["dot"].half_normed(x, torch.float16, 1e-5)
    with pytest.raises(AssertionError, match="no norms"):
        multiply(half, weight, x.new_empty(1, 8), DENSE["dot"], SkinnyScratch(DEVICE))


@pytest.mark.parametrize("tile", DENSE.values(), ids=DENSE)
def test_a_row_is_bitwise_the_same_beside_others(tile):
    x, weight = operands(4, 40, 200, torch.float16)
    whole = run(multiply, x, weight, 40, tile)
    assert torch.equal(run(multiply, x[2:3], weight, 40, tile), whole[2:3])
    assert torch.equal(run(multiply, x[1:4], weight, 40, tile), whole[1:4])


def matrix(n, k, bits, group, minimum, zero=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (n, k), dtype=torch.uint8, generator=generator)
    scale, least = (torch.rand(n, k // group, generator=generator).add_(0.1).half().float() for _ in range(2))
    zero = (0 if minimum else 1 << (bits - 1)) if zero is None else zero
    return CodeMatrix(codes, scale, -least if minimum else None, zero, bits, group)


def decoded(part):
    values = (part.codes.double() - part.zero) * part.scale.double().repeat_interleave(part.group, dim=1)
    if part.minimum is not None:
        values += part.minimum.double().repeat_interleave(part.group, dim=1)
    return values.to(DEVICE)


@pytest.mark.parametrize("minimum", [False, True], ids=["symmetric", "minimum"])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (4, 128), (8, 16), (8, 32), (8, 64), (8, 128)])
def test_codes_of_every_form_are_multiplied_as_what_they_stand_for(bits, group, minimum):
    part = matrix(37, 128 if group == 128 else 192, bits, group, minimum)
    packed = pack_codes([part], DEVICE)
    x = operands(3, 1, part.codes.shape[1], torch.float16)[0].half()
    expected = x.double() @ decoded(part).t()
    for tile in CODES.values():
        out = run(multiply_codes, x, packed, 37, tile)
        assert error(out, expected) < 1e-5 < error(out * 1.01, expected)


def test_codes_without_minima_may_stand_for_numbers_about_any_zero():
    part = matrix(5, 64, 8, 32, minimum=False, zero=3)
    x = operands(2, 1, 64, torch.float16)[0].half()
    out = run(multiply_codes, x, pack_codes([part], DEVICE), 5, CODES["swapped"])
    assert error(out, x.double() @ decoded(part).t()) < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="torch sees no CUDA device")
@pytest.mark.parametrize("tile", [*CODES.values(), SkinnyTile("swapped", 64, 64, 0, 4, 3)], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("minimum", [False, True], ids=["symmetric", "minimum"])
def test_codes_become_bfloat16_exactly(bits, minimum, tile):
    part = matrix(70, 192, bits, 32, minimum)
    x = operands(4, 1, 192, torch.float16)[0].bfloat16()
    out = run(multiply_codes, x, pack_codes([part], DEVICE), 70, tile)
    assert error(out, x.double() @ decoded(part).t()) < 1e-5


SHARED = 200_000


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="torch sees no CUDA device")
@pytest.mark.parametrize(("n", "k"), [(2048, 2048), (4096, 1536), (12288, 2048)])
def test_the_exact_setting_gives_a_row_the_same_bits_in_tiles_of_any_height(n, k):
    x, weight = operands(300, n, k, torch.bfloat16)
    whole = run(multiply, x, weight, n, exact_tile(n, k, 300, SHARED))
    for rows in (1, 5, 16, 33, 64, 100):
        part = run(multiply, x[300 - rows :], weight, n, exact_tile(n, k, rows, SHARED))
        assert torch.equal(part, whole[300 - rows :])


@pytest.mark.parametrize("k", [300, 512, 1024])
def test_splits_that_one_program_adds_up_and_weights_loaded_early_have_the_bits_of_others(k):
    x, weight = operands(20, 72, k, torch.float16)
    x = x.half()
    splits = SkinnyTile("swapped", 32, 64, 128, 4, 2, 4, unit=256)
    whole = run(multiply, x, weight, 72, splits)
    assert error(whole, x.double() @ weight.double().t()) < 1e-3
    assert torch.equal(run(multiply, x, weight, 72, replace(splits, splits=1, folds=4)), whole)
    early = run(multiply, x, weight, 72, SkinnyTile("early", 32, 64, 256, 4, 1, 4, unit=256))
    assert torch.equal(early, whole) if GPU else error(early, whole) < 1e-6


def test_shards_are_stacked_and_unpacked_by_range_and_by_id():
    parts = [matrix(40, 160, 4, 32, True), matrix(30, 160, 4, 32, True, seed=1)]
    packed = pack_codes(parts, DEVICE)
    assert packed.num_bytes == packed_bytes(70, 160, 4, 32)
    expected = torch.cat([decoded(part) for part in parts])
    assert (unpack_codes(packed, slice(0, 70)).double() - expected).abs().max() < 1e-5
    out = torch.full((33, 160), float("nan"), device=DEVICE)
    unpack(packed, 30, out)
    assert (out.double() - expected[30:63]).abs().max() < 1e-5
    ids = torch.tensor([69, 0, 41], device=DEVICE)
    unpack(packed, ids, out[:3])
    assert (out[:3].double() - expected[[69, 0, 41]]).abs().max() < 1e-5


def test_scales_that_float16_cannot_hold_are_kept_in_bfloat16():
    part = matrix(3, 32, 8, 32, True)
    tiny = CodeMatrix(part.codes, (part.scale * 1e-7).bfloat16().float(), part.minimum.bfloat16().float(), 0, 8, 32)
    packed = pack_codes([tiny], DEVICE)
    assert packed.pair == torch.bfloat16
    expected = decoded(tiny)
    assert (unpack_codes(packed, slice(0, 3)).double() - expected).abs().max() < 1e-6
    x = torch.eye(32, device=DEVICE)[:4].half()
    out = run(multiply_codes, x, packed, 3, CODES["swapped"])
    assert (out - expected[:, :4].t()).abs().max() < 1e-6


@pytest.mark.parametrize("shape", [(4096, 2048), (960, 320), (200_000, 8192)], ids=str)
def test_every_shape_has_settings_that_hold_its_rows_in_the_memory_there_is(shape):
    for shared in (1 << 16, 232448):
        dense, codes = dense_tiles(*shape, shared), codes_tiles(*shape, 4, shared)
        assert codes_tiles(*shape, 8, shared)[0].block_m >= 1
        assert len(dense) == len(codes) == len(ROWS)
        for rows, tile in zip(ROWS * 2, dense + codes, strict=True):
            assert tile is None or tile.shared_bytes <= shared
            assert tile is None or tile.form != "reduce" or tile.block_m >= rows
