"""Sizes that decode steps are padded to: few, and none much larger than what it serves."""

from __future__ import annotations

import pytest

from octavo.engine.decode_sizes import padded_rows


def test_the_sizes_are_few():
    assert sorted({padded_rows(n, 256) for n in range(1, 257)}) == [
        1, 2, 4, 8, 16, 24, 32, 48, 64, *range(96, 257, 32),
    ]  # fmt: skip


@pytest.mark.parametrize("most", [1, 3, 5, 8, 20, 100])
def test_every_batch_has_a_size_that_holds_it_and_none_exceeds_the_most(most):
    for n in range(1, most + 1):
        assert n <= padded_rows(n, most) <= most
    assert padded_rows(most, most) == most


def test_batches_grow_into_larger_sizes():
    sizes = [padded_rows(n, 200) for n in range(1, 201)]
    assert sizes == sorted(sizes)
