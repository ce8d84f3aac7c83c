"""Settings of exact products: whatever the number of rows, a weight's columns are split alike."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.triton.skinny_table import exact_codes_tile, exact_tile

rows = st.integers(1, 5000)


@given(st.integers(1, 200_000), st.integers(1, 20_000), rows, rows, st.sampled_from([64_000, 100_000, 227_000]))
def test_splits_depend_on_the_weight_alone_and_are_multiples_of_what_is_added_at_once(n, k, few, many, shared):
    tiles = [exact_tile(n, k, count, shared) for count in (few, many)]
    assert len({(tile.splits * tile.folds, tile.unit) for tile in tiles}) == 1
    for tile in tiles:
        assert tile.form in ("swapped", "early")
        assert tile.unit % tile.block_k == 0 or tile.form == "early"
        assert tile.shared_bytes <= shared
        if tile.form == "early":
            assert tile.unit * -(-k // (tile.unit * tile.splits)) <= tile.block_k


@given(st.integers(1, 200_000), st.integers(1, 20_000), st.sampled_from([4, 8]), rows, rows, st.booleans())
def test_codes_with_minima_have_one_height_and_all_one_split(n, k, bits, few, many, minima):
    sizes = [exact_codes_tile(n, k, bits, count, minima=minima, shared_bytes=227_000) for count in (few, many)]
    assert len({(tile.splits, tile.block_k) for tile in sizes}) == 1
    assert not minima or sizes[0].block_m == sizes[1].block_m
