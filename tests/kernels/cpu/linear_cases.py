"""Matrices for the linear kernel, their float64 definition, and how far from it a product may be."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.kernels.cpu.linear import PackedAffine
from octavo.kernels.cpu.matrices import AffineMatrix

SPAN = 32  # columns that share an activation scale
FULL = 16319  # steps on either side of zero
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


def largest_error(x: Tensor, weight: Tensor) -> Tensor:
    """[T, N]: activations are off by up to half a step of their span, evenly: six deviations of such a sum.

    And float32 rounding, and the smallest activation there is.
    """
    spans = x.double().abs().unflatten(1, (-1, SPAN))
    half_steps = spans.amax(2, keepdim=True).expand_as(spans).flatten(1) / (2 * FULL)
    magnitude = weight.abs().t()
    deviation = (half_steps.square() / 3 @ magnitude.square()).sqrt()
    return 6 * deviation + 2e-7 * (x.double().abs() @ magnitude) + 1e-30 * magnitude.sum(0)


def draw_rows(count: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed))


def assert_is_the_product(y: Tensor, x: Tensor, matrices: list[AffineMatrix]) -> None:
    weight = torch.cat([values_of(matrix) for matrix in matrices])
    expected, allowed = x.double() @ weight.t(), largest_error(x, weight)
    assert y.shape == expected.shape and y.dtype == torch.float32
    assert ((y.double() - expected).abs() <= allowed).all()
    assert ((y.double() * 1.01 - expected).abs() > allowed).any()


def assert_rows_do_not_depend_on_their_number(packed: PackedAffine, x: Tensor, counts: list[int]) -> None:
    whole = packed.multiply(x)
    alone = torch.cat([packed.multiply(row) for row in x.split(1)])
    assert torch.equal(whole, alone)
    for count in counts:
        for part in (slice(0, count), slice(len(x) - count, len(x))):
            assert torch.equal(packed.multiply(x[part].contiguous()), whole[part]), f"{count} rows"
