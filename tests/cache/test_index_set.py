"""`IndexSet` against a plain set, across word boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache.index_set import IndexSet

SIZES = (1, 5, 511, 512, 513, 1024, 1500)


def naive_run_starts(members: set[int], length: int) -> list[int]:
    return [i for i in sorted(members) if all(i + k in members for k in range(length))]


def thinned(size: int, removed: set[int]) -> tuple[IndexSet, set[int]]:
    index_set = IndexSet(size)
    for index in removed:
        index_set.remove_run(index, 1)
    return index_set, set(range(size)) - removed


@st.composite
def sets(draw: st.DrawFn) -> tuple[IndexSet, set[int]]:
    size = draw(st.sampled_from(SIZES))
    holes = draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 300)), max_size=8))
    return thinned(size, {i for start, length in holes for i in range(start, min(size, start + length))})


@given(sets())
@settings(derandomize=True, deadline=None, max_examples=100)
def test_indices_come_out_ascending_until_none_is_left(drawn: tuple[IndexSet, set[int]]) -> None:
    index_set, members = drawn
    assert [index_set.pop_lowest() for _ in range(len(index_set))] == sorted(members)
    assert len(index_set) == 0
    index_set.check_integrity()


@given(sets(), st.integers(1, 700))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_lowest_run_is_where_a_scan_finds_it(drawn: tuple[IndexSet, set[int]], length: int) -> None:
    index_set, members = drawn
    starts = naive_run_starts(members, length)
    assert index_set.lowest_run(length) == (starts[0] if starts else None)


@given(sets())
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_longest_run_exists_and_no_longer_one_does(drawn: tuple[IndexSet, set[int]]) -> None:
    index_set, members = drawn
    longest = index_set.longest_run()
    if members:
        assert naive_run_starts(members, longest)
    assert not naive_run_starts(members, longest + 1)


def test_a_run_across_words_is_removed_whole_and_added_back() -> None:
    index_set = IndexSet(1500)
    index_set.remove_run(500, 600)
    assert len(index_set) == 900
    assert 499 in index_set and 500 not in index_set and 1099 not in index_set and 1100 in index_set
    index_set.check_integrity()
    index_set.add([*range(700, 1100), *range(699, 499, -1)])
    index_set.check_integrity()
    assert index_set.longest_run() == 1500


def test_adding_a_member_or_an_outsider_is_a_broken_invariant() -> None:
    index_set = IndexSet(10)
    for index in (3, 10, -1):
        with pytest.raises(AssertionError):
            index_set.add((index,))
