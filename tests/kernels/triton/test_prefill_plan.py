"""How the chunks of a step are cut into query tiles: every token once, at absolute places, the longest work first."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.triton.prefill_plan import PrefillRows, build_tiles

chunks = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), min_size=1, max_size=6)


def rows_of(chunks, **gap):
    start, count = (np.array(values, dtype=np.int64) for values in zip(*chunks, strict=True))
    return PrefillRows(np.cumsum(count) - count, count, start, np.arange(len(chunks)) * 1000, **gap)


@given(chunks, st.sampled_from([9, 16, 64]), st.sampled_from([None, 1, 50]))
@settings(deadline=None)
def test_every_token_is_in_one_tile_that_begins_and_ends_at_absolute_multiples(chunks, tokens, window):
    tiles = build_tiles(rows_of(chunks), tokens, window)
    seen = {}
    for first, count, column, table, begin, _, skip, limit in tiles.tolist():
        assert 0 < count <= tokens
        assert (column // tokens + 1) * tokens == limit
        assert column + count <= limit
        assert skip == 0
        assert begin == (0 if window is None else max(0, column - window + 1))
        for t in range(count):
            assert first + t not in seen
            seen[first + t] = (table // 1000, column + t)
    at = 0
    for r, (start, count) in enumerate(chunks):
        for t in range(count):
            assert seen.pop(at) == (r, start + t)
            at += 1
    assert not seen
    work = tiles[:, 2] + tiles[:, 1] - tiles[:, 4]
    assert (np.diff(work) <= 0).all()


def test_columns_after_a_gap_lie_further_and_windows_look_past_it():
    gap = {"keep": np.array([5, 5]), "skip": np.array([21, 0])}
    tiles = build_tiles(rows_of([(40, 10), (40, 10)], **gap), 64, 30)
    first = {int(tile[3]): tile.tolist() for tile in tiles}
    assert first[0] == [0, 10, 61, 0, 32, 5, 21, 85]
    assert first[1000] == [10, 10, 40, 1000, 11, 5, 0, 64]
    wide = build_tiles(rows_of([(40, 10)], keep=np.array([5]), skip=np.array([21])), 64, 38)
    assert wide[0, 4] == 3  # a kept one
