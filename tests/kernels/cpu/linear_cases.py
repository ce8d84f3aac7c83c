"""Matrices for the linear kernel, their float64 definition, and how far from it a product may be."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.kernels.cpu.linear import PackedAffine, kernel_bits
from octavo.kernels.cpu.matrices import AffineMatrix

SPAN = 32  # columns that share an activation scale, with codes of 6 and 8 bits
FULL = {4: 16192, 5: 8064, 6: 16319, 8: 16319}  # steps on either side of zero, by the bits of codes
WEIGHT_STEPS = 32600  # in the largest weight of a row's stripe, for codes of 4 and 5 bits
# (zero, whether there are minima) by what they are like in files.
OFFSETS = {"plain": (0, False), "zero": (8, False), "minimum": (0, True), "both": (3, True)}


def draw_matrix(
    rows: int, columns: int, bits: int, group: int, offset: str, *, seed: int = 0, size: float = 1.0
) -> AffineMatrix:
    """Codes over the whole range, scales and minima of both signs that float16 holds exactly, around `size`."""
    generator = torch.Generator().manual_seed(seed)
    zero, has_minimum = OFFSETS[offset]
    codes = torch.randint(0, 2**bits, (rows, columns), generator=generator, dtype=torch.uint8)
    codes[:, 0], codes[:, -1] = 0, 2**bits - 1

    def numbers() -> Tensor:
        values = (torch.rand(rows, columns // group, generator=generator) / 2 + 0.5).half().float()
        signs = torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
        return values * signs * size

    return AffineMatrix(codes, numbers(), numbers() if has_minimum else None, zero, bits, group)


def values_of(matrix: AffineMatrix) -> Tensor:
    """[N, K] float64."""
    weight = (matrix.codes.double() - matrix.zero) * matrix.scale.double().repeat_interleave(matrix.group, 1)
    if matrix.minimum is not None:
        weight += matrix.minimum.double().repeat_interleave(matrix.group, 1)
    return weight


def kernel_form(matrix: AffineMatrix) -> int:
    """Bits that its codes are packed in."""
    return kernel_bits(matrix.bits, matrix.group, matrix.minimum is not None)


def stripes(matrix: AffineMatrix) -> list[slice]:
    """Columns that are added up as integers, and share a scale of activations."""
    if kernel_form(matrix) > 5:
        return [slice(start, start + SPAN) for start in range(0, matrix.num_columns, SPAN)]
    pairs = -(-matrix.num_columns // 64)
    count = -(-pairs // 8)
    return [slice(64 * (pairs * i // count), 64 * (pairs * (i + 1) // count)) for i in range(count)]


def weight_steps(matrix: AffineMatrix) -> Tensor:
    """[N, K] float64: what scales and minima are rounded to multiples of; 0 where they are kept."""
    if kernel_form(matrix) > 5:
        return torch.zeros(matrix.codes.shape, dtype=torch.float64)
    ends = [code - matrix.zero for code in (0, 2**matrix.bits - 1)]
    minimum = 0.0 if matrix.minimum is None else matrix.minimum.double()
    largest = torch.stack([(end * matrix.scale.double() + minimum).abs() for end in ends]).amax(0)
    largest = largest.repeat_interleave(matrix.group, 1)
    return torch.cat([largest[:, s].amax(1, keepdim=True).expand_as(largest[:, s]) for s in stripes(matrix)], 1) / (
        WEIGHT_STEPS
    )


def largest_weight_error(matrix: AffineMatrix) -> Tensor:
    """[N, K]: half a step of the scale times the code, counted from the middle or from zero, and half of the offset."""
    middle = 2 ** (kernel_form(matrix) - 1) if matrix.minimum is not None else matrix.zero
    factor = (matrix.codes.double() - middle).abs() / 2 + (0.5 if matrix.minimum is not None else 0.0)
    return factor * weight_steps(matrix)


def largest_error(x: Tensor, matrix: AffineMatrix) -> Tensor:
    """[T, N]: activations are off by up to half a step, evenly, and so are scales and offsets of groups, where they are
    rounded: six deviations of such a sum. And float32 rounding, and the smallest activation there is.
    """
    x = x.double()
    half_steps = torch.cat([x[:, s].abs().amax(1, keepdim=True).expand_as(x[:, s]) for s in stripes(matrix)], 1)
    half_steps /= 2 * FULL[kernel_form(matrix)]
    magnitude = values_of(matrix).abs().t()
    variance = half_steps.square() / 3 @ magnitude.square()
    middle = 2 ** (kernel_form(matrix) - 1) if matrix.minimum is not None else matrix.zero
    groups = (-1, matrix.group)
    steps = weight_steps(matrix).unflatten(1, groups)[:, :, 0]
    codes = (matrix.codes.double() - middle).unflatten(1, groups)
    by_scale = torch.einsum("tgi,ngi->tng", x.unflatten(1, groups), codes)
    variance += (by_scale.square() * steps.square()).sum(2) / 12
    if matrix.minimum is not None:
        variance += x.unflatten(1, groups).sum(2).square() @ steps.square().t() / 12
    return 6 * variance.sqrt() + 2e-7 * (x.abs() @ magnitude) + 1e-30 * magnitude.sum(0)


def draw_rows(count: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed))


def assert_is_the_product(y: Tensor, x: Tensor, matrices: list[AffineMatrix]) -> None:
    weight = torch.cat([values_of(matrix) for matrix in matrices])
    expected, allowed = x.double() @ weight.t(), torch.cat([largest_error(x, matrix) for matrix in matrices], 1)
    assert y.shape == expected.shape and y.dtype == torch.float32
    assert ((y.double() - expected).abs() <= allowed).all()
    assert ((y.double() * 1.03 - expected).abs() > allowed).any()


def assert_looks_up_rows(packed: PackedAffine, matrix: AffineMatrix, ids: Tensor) -> None:
    error = (packed.lookup(ids).double() - values_of(matrix)[ids]).abs()
    assert (error <= 1.001 * largest_weight_error(matrix)[ids] + 1e-7 * values_of(matrix)[ids].abs()).all()


def assert_rows_do_not_depend_on_their_number(packed: PackedAffine, x: Tensor, counts: list[int]) -> None:
    whole = packed.multiply(x)
    alone = torch.cat([packed.multiply(row) for row in x.split(1)])
    assert torch.equal(whole, alone)
    for count in counts:
        for part in (slice(0, count), slice(len(x) - count, len(x))):
            assert torch.equal(packed.multiply(x[part].contiguous()), whole[part]), f"{count} rows"
