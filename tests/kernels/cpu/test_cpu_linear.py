"""Products with weights of 4 to 8 bits: right, and a row's bits a function of the row alone."""

from __future__ import annotations

import pytest
import torch

from octavo.kernels.cpu import library
from octavo.kernels.cpu.linear import PackedAffine, packed_bytes
from tests.kernels.cpu.linear_cases import (
    OFFSETS,
    assert_is_the_product,
    assert_looks_up_rows,
    assert_rows_do_not_depend_on_their_number,
    draw_matrix,
    draw_rows,
    largest_error,
    values_of,
)

COLUMNS = [32, 64, 96, 576, 1536, 33 * 32]
# Around the number of rows that share a pass over a tile (4) and a block (16); an item has 256.
COUNTS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130]

every_form = pytest.mark.parametrize(
    ("bits", "group", "offset"),
    [(bits, group, offset) for bits in (4, 5, 6, 8) for group in (16, 32) for offset in OFFSETS],
    ids=lambda value: str(value),
)


@pytest.mark.parametrize("columns", COLUMNS)
@every_form
def test_a_product_is_the_definition_up_to_the_rounding_of_activations(bits, group, offset, columns):
    for rows, count in ((37, 21), (1, 2), (16, 64), (50, 1)):
        matrix = draw_matrix(rows, columns, bits, group, offset, seed=rows)
        x = draw_rows(count, columns)
        assert_is_the_product(PackedAffine([matrix]).multiply(x), x, [matrix])


@every_form
def test_a_row_has_the_same_bits_alone_and_among_any_number_of_others(bits, group, offset):
    for rows, columns in ((37, 96), (18, 1536)):
        packed = PackedAffine([draw_matrix(rows, columns, bits, group, offset)])
        assert_rows_do_not_depend_on_their_number(packed, draw_rows(130, columns), COUNTS)


@every_form
def test_a_row_has_the_same_bits_whichever_item_it_is_of(bits, group, offset):
    packed, x = PackedAffine([draw_matrix(18, 96, bits, group, offset)]), draw_rows(273, 96)
    whole = packed.multiply(x)
    for part in (slice(0, 255), slice(0, 256), slice(0, 257), slice(16, 273), slice(255, 260), slice(256, 257)):
        assert torch.equal(packed.multiply(x[part].contiguous()), whole[part])


def test_more_columns_than_a_pass_holds_change_nothing_about_rows():
    columns = 1025 * 32
    matrix = draw_matrix(5, columns, 8, 32, "zero")
    packed, x = PackedAffine([matrix]), draw_rows(18, columns)
    assert_is_the_product(packed.multiply(x), x, [matrix])
    assert_rows_do_not_depend_on_their_number(packed, x, [1, 4, 16, 17])


def test_stacked_matrices_of_different_encodings_and_odd_heights_give_their_products_side_by_side():
    matrices = [
        draw_matrix(rows, 96, bits, group, offset, seed=rows)
        for rows, bits, group, offset in (
            (3, 4, 32, "zero"),
            (17, 8, 16, "plain"),
            (16, 4, 16, "minimum"),
            (1, 8, 32, "both"),
        )
    ]
    packed = PackedAffine(matrices)
    assert (packed.num_rows, packed.num_columns) == (37, 96)
    x = draw_rows(70, 96)
    y = packed.multiply(x)
    assert_is_the_product(y, x, matrices)
    assert torch.equal(y, torch.cat([PackedAffine([matrix]).multiply(x) for matrix in matrices], dim=1))
    counted = sum(packed_bytes(len(m.codes), 96, m.bits, m.group, m.minimum is not None) for m in matrices)
    assert counted <= packed.num_bytes < counted + 64 * len(matrices)


@pytest.mark.parametrize("rows", [1, 3, 16, 130])
def test_the_number_of_threads_changes_no_bit(rows):
    matrices = [draw_matrix(301, 576, 4, 32, "minimum"), draw_matrix(45, 576, 8, 16, "plain")]
    x = draw_rows(rows, 576)
    library.set_threads(1)
    expected_bytes, expected = None, None
    for threads in (1, 2, 3, 5):
        library.set_threads(threads)
        packed = PackedAffine(matrices)
        y, looked_up = packed.multiply(x), PackedAffine(matrices[:1]).lookup(torch.arange(301))
        if expected is None:
            expected, expected_bytes = y, looked_up
        assert torch.equal(y, expected) and torch.equal(looked_up, expected_bytes), f"{threads} threads"


@pytest.mark.parametrize("exponent", [-115, -100, -60, -20, 15, 60, 100])
@pytest.mark.parametrize("offset", ["zero", "minimum"])
@pytest.mark.parametrize("bits", [4, 8])
def test_scales_of_any_size_survive_their_16_bit_form(bits, offset, exponent):
    matrix = draw_matrix(20, 64, bits, 32, offset, size=2.0**exponent)
    x = draw_rows(17, 64)
    y = PackedAffine([matrix]).multiply(x)
    assert_is_the_product(y, x, [matrix])
    assert y.isfinite().all()


def test_scales_that_float16_does_not_hold_are_rounded_to_eleven_bits():
    generator = torch.Generator().manual_seed(2)
    matrix = draw_matrix(40, 96, 8, 32, "zero")
    matrix.scale.copy_(torch.rand(40, 3, generator=generator) + 0.1)
    read = PackedAffine([matrix]).lookup(torch.arange(40)).double()
    exact = values_of(matrix)
    assert ((read - exact).abs() <= 2.0**-11 * exact.abs()).all()
    assert not torch.equal(read, exact)


@pytest.mark.parametrize("columns", [96, 1536])
@every_form
def test_looked_up_rows_are_the_dequantised_ones_up_to_the_rounding_of_scales(bits, group, offset, columns):
    matrix = draw_matrix(37, columns, bits, group, offset)
    ids = torch.tensor([36, 0, 15, 16, 16, 31, 32, 5])
    packed = PackedAffine([matrix])
    assert_looks_up_rows(packed, matrix, ids)
    assert packed.lookup(ids[:0]).shape == (0, columns)


@pytest.mark.parametrize("bits", [4, 5])
def test_a_row_of_large_weights_costs_no_other_row_precision_nor_other_columns(bits):
    matrix = draw_matrix(20, 1536, bits, 32, "zero")
    small = values_of(matrix)
    matrix.scale[3] *= 1e4
    matrix.scale[7, :16] *= 1e4  # the first of three stripes
    read = PackedAffine([matrix]).lookup(torch.arange(20)).double()
    rest = torch.ones_like(small, dtype=torch.bool)
    rest[3], rest[7, :512] = False, False
    assert ((read - small).abs()[rest] <= 4e-4 * small.abs().max()).all()
    assert not torch.equal(read[rest], small[rest])


@every_form
def test_weights_of_zero_give_exactly_zero(bits, group, offset):
    matrix = draw_matrix(19, 64, bits, group, offset)
    x = draw_rows(20, 64)
    if matrix.minimum is None:  # every code says "no value", whatever the scale
        matrix.codes.fill_(matrix.zero)
        assert (PackedAffine([matrix]).multiply(x) == 0).all()
    else:
        matrix.minimum.zero_()
    matrix.scale.zero_()
    assert (PackedAffine([matrix]).multiply(x) == 0).all()


@pytest.mark.parametrize(("bits", "shared"), [(4, slice(0, 512)), (5, slice(0, 512)), (8, slice(96, 128))])
def test_an_activation_far_above_the_others_costs_only_the_precision_of_columns_that_share_its_scale(bits, shared):
    matrix = draw_matrix(33, 1536, bits, 32, "minimum")
    x = draw_rows(18, 1536)
    x[:, 100] *= 1e4
    packed = PackedAffine([matrix])
    assert_is_the_product(packed.multiply(x), x, [matrix])
    quiet = x.clone()
    quiet[:, shared] = 0.0
    assert largest_error(quiet, matrix).max() < 0.05 * largest_error(x, matrix).max()
    assert_is_the_product(packed.multiply(quiet), quiet, [matrix])


def test_denormal_and_tiny_activations_are_finite_and_near_zero():
    matrix = draw_matrix(33, 96, 8, 16, "both")
    x = draw_rows(20, 96)
    x[0], x[1], x[2] = x[0] * 1e-40, x[1] * 1e-25, 0.0
    x[3, :32] *= 1e-38
    y = PackedAffine([matrix]).multiply(x)
    assert_is_the_product(y, x, [matrix])
    assert y[0].abs().max() < 1e-25 and (y[2] == 0).all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("count", [3, 20])
@every_form
def test_what_is_not_finite_poisons_its_row_and_no_other(bits, group, offset, count, poison):
    packed = PackedAffine([draw_matrix(18, 96, bits, group, offset)])
    x = draw_rows(count, 96)
    clean = packed.multiply(x)
    x[1, 40] = poison
    y = packed.multiply(x)
    assert not y[1].isfinite().any()
    others = [row for row in range(count) if row != 1]
    assert torch.equal(y[others], clean[others])
