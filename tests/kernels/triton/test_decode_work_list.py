"""How a decode step is cut into work: every column once, nothing for what is absent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.triton.decode_plan import (
    DecodeRows,
    build_work_list,
    chunk_length,
    first_visible,
)
from octavo.kernels.triton.decode_tiles import choose


def rows_of(columns, first=None, queries=None):
    columns = np.array(columns, dtype=np.int64)
    counts = np.ones_like(columns) if queries is None else np.array(queries)
    return DecodeRows(
        first_query=np.cumsum(counts) - counts,
        num_queries=counts,
        first_column=np.zeros_like(columns) if first is None else np.array(first),
        columns=columns,
        table_begin=np.arange(len(columns)) * 1000,
    )


lengths = st.lists(st.integers(-3, 5000), min_size=1, max_size=12)


@given(lengths, st.integers(1, 40), st.data())
@settings(deadline=None)
def test_every_visible_column_is_in_one_item_and_slots_are_dense(columns, chunk, data):
    first = [data.draw(st.integers(0, max(n, 0))) for n in columns]
    chunk *= 64
    work = build_work_list(rows_of(columns, first), chunk=chunk)
    slots = []
    for r, (n, begin) in enumerate(zip(columns, first, strict=True)):
        items = work.items[work.first_items[r] : work.first_items[r + 1]]
        seen = np.concatenate([np.arange(item[2], item[3]) for item in items])
        assert np.array_equal(seen, np.arange(begin, max(n, 0)))
        assert (items[:, 3] - items[:, 2] <= chunk).all()
        assert (items[:, 5] >= 0).all() == (len(items) > 1)
        slots += [slot for slot in items[:, 5] if slot >= 0]
        assert work.merges[r, 3] == (len(items) if len(items) > 1 else 0)
    assert slots == list(range(work.num_slots))


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=64), st.integers(1, 700))
def test_chunks_stay_within_the_budget_of_items(columns, budget):
    length = chunk_length(np.array(columns), budget, 64)
    assert sum(-(-n // length) for n in columns) <= max(budget, len(columns))


def test_short_sequences_beside_a_long_one_cost_no_dead_items():
    lengths = np.array([4096] + [256] * 7)
    _, chunk, _ = choose(128, 16, 8, lengths)
    work = build_work_list(rows_of(lengths), chunk=chunk)
    assert (work.items[:, 3] > work.items[:, 2]).all()
    assert (work.items[:, 3] - work.items[:, 2]).max() <= 256


@pytest.mark.parametrize(
    ("lengths", "whole"),
    [
        ([100 + 4 * i for i in range(200)], True),
        ([100] * 140 + [16_000], False),  # the last would be left alone
        ([100 + 16 * i for i in range(64)], True),
        ([100 + 36 * i for i in range(28)], False),
    ],
    ids=["many", "one long", "some", "few"],
)
def test_many_sequences_stay_whole_unless_one_is_long(lengths, whole):
    _, chunk, most = choose(128, 16, 8, np.array(lengths))
    work = build_work_list(rows_of(lengths), chunk=chunk)
    assert work.num_items <= most
    assert (work.num_items == len(lengths)) == whole


@pytest.mark.parametrize("rows", [50, 57, 85, 124])
def test_padding_cuts_no_sequence_of_as_many_as_fill_the_card(rows):
    lengths = np.array([1000] * (rows - 4) + [1400] * 4 + [0] * 4)
    _, chunk, most = choose(128, 16, 8, lengths)
    assert chunk >= lengths.max()
    assert most >= len(lengths)


def test_the_more_sequences_stay_whole_the_narrower_are_their_tiles():
    some, many = (choose(128, 16, 8, np.arange(rows) * 10 + 100)[0] for rows in (100, 200))
    assert some.block_n == 2 * many.block_n


def test_a_long_sequence_alone_is_cut_finer_where_heads_are_projected_as_they_attend():
    (usual, many), (few, some) = (choose(128, 16, 8, np.array([30_000]), group=group)[::2] for group in (4, 2))
    assert (usual.block_n, many) == (32, 66)
    assert (few.block_n, some) == (64, 33)
    short, _, most = choose(128, 16, 8, np.array([20_000]), group=4)
    assert (short.block_n, most) == (64, 33)


def test_items_with_most_columns_are_begun_first_and_those_with_none_last():
    work = build_work_list(rows_of([100, 700, 0, 300]), chunk=400, capacity=7)
    begun = work.longest_first
    assert (begun[:, 3] - begun[:, 2]).tolist() == [384, 316, 300, 100, 0, 0, 0]
    assert sorted(map(tuple, begun)) == sorted(map(tuple, work.items))


def test_padding_up_to_a_capacity_does_nothing():
    work = build_work_list(rows_of([100, 0]), chunk=64, capacity=9)
    assert len(work.items) == 9
    assert not work.items[work.num_items :].any()
    with pytest.raises(AssertionError, match="work list for 2"):
        build_work_list(rows_of([100, 300]), chunk=64, capacity=2)


def test_windows_of_query_rows_begin_where_their_own_positions_say():
    assert first_visible(np.array([98, 100, 6]), 10, None, None).tolist() == [88, 90, 0]
    keep, skip = np.array([5]), np.array([21])
    assert first_visible(np.array([60]), 30, keep, skip).tolist() == [30]  # position 9
    assert first_visible(np.array([60]), 36, keep, skip).tolist() == [3]  # a kept one


def test_a_plan_is_carried_on_until_a_chunk_is_full_or_empty():
    work = build_work_list(rows_of([200, 90]), chunk=256)
    assert work.advance(rows_of([500, 90], first=[10, 0]))
    assert work.items[0, 2:4].tolist() == [10, 500]
    assert not work.advance(rows_of([513, 90]))  # 256 columns more than its own
    assert not work.advance(rows_of([500, 90], first=[500, 0]))
