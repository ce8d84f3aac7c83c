"""How the chunks of a step are cut into query tiles: every token once, at absolute places, the longest work first."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.triton.prefill_plan import PrefillRows, build_work

chunks = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), min_size=1, max_size=6)


def rows_of(chunks, **gap):
    start, count = (np.array(values, dtype=np.int64) for values in zip(*chunks, strict=True))
    return PrefillRows(np.cumsum(count) - count, count, start, np.arange(len(chunks)) * 1000, **gap)


@given(chunks, st.sampled_from([9, 16, 64]), st.sampled_from([None, 1, 50]), st.sampled_from([64, 256, 8192]))
@settings(deadline=None)
def test_every_token_sees_its_columns_once_in_tiles_and_parts_at_absolute_multiples(chunks, tokens, window, part):
    work = build_work(rows_of(chunks), tokens, window, part)
    tiles = {}
    for first, count, column, table, begin, end, slot, _, skip, limit in work.parts.tolist():
        assert 0 < count <= tokens
        assert column // tokens * tokens + tokens == limit >= column + count
        assert skip == 0
        assert begin // part == (end - 1) // part or end <= begin
        tiles.setdefault((first, count, column, table // 1000), []).append((begin, end, slot))
    tokens_seen = [(first + t, r, column + t) for first, count, column, r in tiles for t in range(count)]
    starts = np.cumsum([0] + [count for _, count in chunks])
    expected = [(starts[r] + t, r, start + t) for r, (start, count) in enumerate(chunks) for t in range(count)]
    assert sorted(tokens_seen) == expected
    merged = {}
    for (first, count, column, _), pieces in tiles.items():
        columns = sorted(c for begin, end, _ in pieces for c in range(begin, end))
        assert columns == list(range(0 if window is None else max(0, column - window + 1), column + count))
        slots = [slot for *_, slot in sorted(pieces)]
        if len(slots) == 1:
            assert slots == [-1]
        else:
            merged[first] = (first, count, min(slots), len(slots))
            assert sorted(slots) == list(range(min(slots), min(slots) + len(slots)))
    assert [tuple(merge) for merge in work.merges.tolist()] == [merged[first] for first in sorted(merged)]
    assert work.num_slots == sum(slots for *_, slots in merged.values())
    lengths = work.parts[:, 5] - work.parts[:, 4]
    assert (np.diff(lengths) <= 0).all()


def test_columns_after_a_gap_lie_further_and_windows_look_past_it():
    gap = {"keep": np.array([5, 5]), "skip": np.array([21, 0])}
    parts = build_work(rows_of([(40, 10), (40, 10)], **gap), 64, 30, 1024).parts
    first = {int(part[3]): part.tolist() for part in parts}
    assert first[0] == [0, 10, 61, 0, 32, 71, -1, 5, 21, 85]
    assert first[1000] == [10, 10, 40, 1000, 11, 50, -1, 5, 0, 64]
    wide = build_work(rows_of([(40, 10)], keep=np.array([5]), skip=np.array([21])), 64, 38, 1024).parts
    assert wide[0, 4] == 3  # a kept one
