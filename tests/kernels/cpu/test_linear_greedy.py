"""The best of a product's results, found where its tiles are computed, is that of the results as they are written."""

from __future__ import annotations

import pytest
import torch

from octavo.kernels.cpu import library
from octavo.kernels.cpu.linear import PackedAffine
from octavo.kernels.greedy import greedy_tokens
from tests.kernels.cpu.linear_cases import draw_matrix, draw_rows

pytestmark = pytest.mark.skipif(library.load().functions is None, reason="no compiled kernels here")


def assert_finds_the_best(packed: PackedAffine, x: torch.Tensor) -> None:
    found = packed.greedy(x)
    assert found is not None
    assert torch.equal(found, greedy_tokens(packed.multiply(x)))


class TestLinearGreedy:
    @pytest.mark.parametrize("bits", [4, 5, 6, 8])
    @pytest.mark.parametrize("num_rows", [1, 15, 37, 1031])
    def test_of_every_form(self, bits, num_rows):
        packed = PackedAffine([draw_matrix(num_rows, 96, bits, 16 if bits == 6 else 32, "zero")])
        for count in (1, 2, 5, 8, 9, 16, 33, 64):
            assert_finds_the_best(packed, draw_rows(count, 96))

    def test_of_several_matrices(self):
        packed = PackedAffine([draw_matrix(n, 64, bits, 32, "minimum") for n, bits in ((37, 4), (16, 8), (500, 5))])
        assert_finds_the_best(packed, draw_rows(20, 64))

    def test_the_first_of_equals(self):
        matrix = draw_matrix(3000, 64, 8, 32, "zero")
        matrix.codes[:] = matrix.codes[torch.arange(3000) % 7]
        matrix.scale[:] = matrix.scale[torch.arange(3000) % 7]
        packed, x = PackedAffine([matrix]), draw_rows(8, 64)
        for threads in (1, 2, 3):
            library.set_threads(threads)
            found = packed.greedy(x)
            assert found is not None
            assert found.max() < 7
            assert_finds_the_best(packed, x)

    def test_all_equal_and_below_zero(self):
        matrix = draw_matrix(40, 32, 8, 32, "plain")
        matrix.codes.fill_(3)
        matrix.scale.fill_(-1.0)
        found = PackedAffine([matrix]).greedy(torch.ones(1, 32))
        assert found is not None
        assert found.tolist() == [0]

    def test_poison_stays_in_its_row(self):
        packed, x = PackedAffine([draw_matrix(100, 64, 8, 32, "zero")]), draw_rows(9, 64)
        clean = packed.greedy(x)
        x[2, 5], x[7, 63] = float("nan"), float("inf")
        found = packed.greedy(x)
        assert clean is not None
        assert found is not None
        assert found[[2, 7]].tolist() == [-1, -1]
        others = [i for i in range(9) if i not in (2, 7)]
        assert torch.equal(found[others], clean[others])

    def test_is_not_served(self):
        packed = PackedAffine([draw_matrix(16, 32, 8, 32, "zero")])
        assert packed.greedy(torch.zeros(0, 32)) is None
        assert packed.greedy(torch.zeros(65, 32)) is None
