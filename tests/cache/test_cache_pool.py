"""`CachePool` behaviours that deserve a sentence of their own, beside the state machine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache.cache_pool import CachePool
from octavo.cache.refusals import BlocksExhausted, InvalidArgument, StaleHandle
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.step_batch import FreshBlocks, StorageKind

DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED
FULL = CacheGroup(LayerSpec("full", 4, 2, 64, 64, 0.125), (0,))
SLIDING = CacheGroup(LayerSpec("sliding", 4, 2, 64, 64, 0.125, window=32), (1,))


def test_a_dense_sequence_takes_one_run_of_full_blocks_up_front_and_nothing_for_its_rings() -> None:
    pool = CachePool([FULL, SLIDING], 16, [10, 10], 4)
    handle = pool.allocate("a", DENSE, 100)
    assert pool.num_free_blocks == (3, 10)
    assert pool.table(handle, 0) == tuple(range(7)) and pool.table(handle, 1) == ()
    assert pool.append(handle, 5) == (FreshBlocks(0, 0, tuple(range(7))),)
    assert pool.append(handle, 60) == ()


def test_a_dense_sequence_is_refused_whole_if_its_second_group_has_no_run() -> None:
    pool = CachePool([FULL, FULL], 16, [10, 3], 4)
    with pytest.raises(BlocksExhausted):
        pool.allocate("a", DENSE, 64)
    assert pool.num_free_blocks == (10, 3) and pool.num_free_slots == 4


def test_a_paged_sequence_grows_block_by_block_in_every_group() -> None:
    pool = CachePool([FULL, SLIDING], 16, [10, 10], 4)
    handle = pool.allocate("a", PAGED, 100)
    assert pool.append(handle, 16) == (FreshBlocks(0, 0, (0,)), FreshBlocks(1, 0, (0,)))
    assert pool.append(handle, 1) == (FreshBlocks(0, 1, (1,)), FreshBlocks(1, 1, (1,)))
    assert pool.append(handle, 15) == ()


def test_an_append_that_one_group_cannot_take_leaves_the_other_untouched() -> None:
    pool = CachePool([FULL, SLIDING], 16, [10, 2], 4)
    handle = pool.allocate("a", PAGED, 100)
    with pytest.raises(BlocksExhausted, match=r"needs 3 more blocks in group 1; 2 of 2 are free"):
        pool.append(handle, 48)
    assert pool.num_free_blocks == (10, 2) and pool.written(handle) == 0


def test_a_rolled_back_append_keeps_its_blocks_out_of_others_hands() -> None:
    pool = CachePool([FULL], 16, [3], 2)
    first, second = pool.allocate("a", PAGED, 48), pool.allocate("b", PAGED, 48)
    fresh = pool.append(first, 32)
    pool.rollback_append(first, 32)
    assert pool.append(second, 16) == (FreshBlocks(0, 0, (2,)),)
    assert pool.append(first, 32) == fresh == (FreshBlocks(0, 0, (0, 1)),)


def test_a_dense_run_is_announced_again_after_its_first_append_failed() -> None:
    pool = CachePool([FULL], 16, [4], 1)
    handle = pool.allocate("a", DENSE, 64)
    fresh = pool.append(handle, 20)
    pool.rollback_append(handle, 20)
    assert pool.append(handle, 20) == fresh


def test_a_front_trim_frees_whole_blocks_left_of_the_window_and_lowers_nothing_written() -> None:
    pool = CachePool([FULL, SLIDING], 16, [10, 10], 1)
    handle = pool.allocate("a", PAGED, 100)
    pool.append(handle, 80)
    assert pool.trim_front(handle, 1, 80 - 32 + 1) == (2, 1, 0)
    assert pool.table(handle, 1) == (None, None, None, 3, 4)
    assert pool.written(handle) == 80
    assert pool.live_start(handle) == (0, 49)
    assert (pool.sequence(handle).visible(0), pool.sequence(handle).visible(1)) == (80, 31)


def test_a_front_trim_never_takes_what_the_next_token_needs() -> None:
    pool = CachePool([SLIDING], 16, [10], 1)
    handle = pool.allocate("a", PAGED, 100)
    pool.append(handle, 80)
    with pytest.raises(InvalidArgument, match=r"live_start 50 is outside \[0, 49\]"):
        pool.trim_front(handle, 0, 50)


def test_a_tail_trim_beyond_a_freed_block_is_refused_and_within_the_held_ones_restores_the_window() -> None:
    pool = CachePool([SLIDING], 16, [10], 1)
    handle = pool.allocate("a", PAGED, 100)
    pool.append(handle, 80)
    pool.trim_front(handle, 0, 49)
    with pytest.raises(InvalidArgument, match="no longer holds the window"):
        pool.trim_tail(handle, 2)
    pool.trim_tail(handle, 1)
    assert (pool.written(handle), pool.live_start(handle)) == (79, (48,))


def test_a_tail_trim_frees_paged_blocks_and_leaves_a_dense_run_whole() -> None:
    pool = CachePool([FULL], 16, [10], 2)
    dense, paged = pool.allocate("d", DENSE, 64), pool.allocate("p", PAGED, 64)
    for handle in (dense, paged):
        pool.append(handle, 40)
        pool.trim_tail(handle, 30)
    assert pool.table(dense, 0) == (0, 1, 2, 3) and pool.table(paged, 0) == (4,)


def test_reserved_blocks_serve_the_next_append() -> None:
    pool = CachePool([FULL], 16, [3], 2)
    first, second = pool.allocate("a", PAGED, 48), pool.allocate("b", PAGED, 48)
    pool.reserve(first, 48)
    with pytest.raises(BlocksExhausted):
        pool.append(second, 1)
    assert pool.append(first, 17) == (FreshBlocks(0, 0, (0, 1)),)
    assert pool.append(first, 16) == (FreshBlocks(0, 2, (2,)),)


def test_a_handle_is_stale_after_release_even_when_its_slot_and_name_are_used_again() -> None:
    pool = CachePool([FULL], 16, [3], 1)
    old = pool.allocate("a", PAGED, 16)
    pool.release(old)
    new = pool.allocate("a", PAGED, 16)
    assert new.slot == old.slot and new.generation > old.generation
    with pytest.raises(StaleHandle, match="slot 0, generation 1 is no longer live"):
        pool.append(old, 1)


def test_a_reset_sequence_starts_again_under_a_new_generation() -> None:
    pool = CachePool([FULL], 16, [3], 1)
    old = pool.allocate("a", PAGED, 48)
    pool.append(old, 40)
    new = pool.reset(old)
    assert pool.num_free_blocks == (3,) and pool.written(new) == 0
    assert pool.append(new, 1) == (FreshBlocks(0, 0, (0,)),)
    with pytest.raises(StaleHandle):
        pool.written(old)


def test_a_reference_held_elsewhere_outlives_the_sequence() -> None:
    pool = CachePool([FULL], 16, [3], 2)
    handle = pool.allocate("a", PAGED, 48)
    pool.append(handle, 20)
    other = pool.fork(handle, "b")
    pool.release(handle)
    assert pool.num_free_blocks == (1,)
    pool.release(other)
    assert pool.num_free_blocks == (3,)
    pool.check_integrity()


def test_admission_counts_what_running_sequences_may_still_claim() -> None:
    pool = CachePool([FULL], 16, [6], 3)
    handle = pool.allocate("a", PAGED, 64)
    pool.append(handle, 16)
    assert pool.num_free_blocks == (5,) and pool.available_blocks() == (2,)
    assert pool.can_allocate(PAGED, 32) and not pool.can_allocate(PAGED, 33)


def test_a_dense_sequence_needs_its_blocks_in_a_row() -> None:
    pool = CachePool([FULL], 16, [3], 3)
    handles = [pool.allocate(name, DENSE, 16) for name in "abc"]
    pool.release(handles[0])
    pool.release(handles[2])
    assert pool.can_allocate(PAGED, 32) and not pool.can_allocate(DENSE, 32) and pool.can_allocate(DENSE, 16)


def test_nothing_can_be_allocated_without_a_slot() -> None:
    pool = CachePool([FULL], 16, [30], 1)
    pool.allocate("a", PAGED, 16)
    assert not pool.can_allocate(PAGED, 16)


@given(
    num_blocks=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    max_append=st.sampled_from([None, 1, 16, 40]),
    storage=st.sampled_from(StorageKind),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_the_largest_fit_is_the_last_length_that_fits(
    num_blocks: tuple[int, int], max_append: int | None, storage: StorageKind
) -> None:
    pool = CachePool([FULL, SLIDING], 16, num_blocks, 1, max_append)
    fitting = [tokens for tokens in range(1, 400) if pool.fits_ever(tokens, storage)]
    assert fitting == list(range(1, (pool.largest_fit(storage) or 0) + 1))


def test_a_window_that_always_fits_puts_no_limit_on_length() -> None:
    pool = CachePool([SLIDING], 16, [4], 1, max_append_tokens=16)
    assert pool.largest_fit(PAGED) is None and pool.fits_ever(10**9, PAGED)


def test_a_window_trimmed_after_each_append_stays_within_its_bound_for_ever() -> None:
    pool = CachePool([SLIDING], 16, [4], 1, max_append_tokens=16)
    handle = pool.allocate("a", PAGED, 10**6)
    for step in range(500):
        pool.append(handle, 1 + step % 16)
        pool.trim_front(handle, 0, SLIDING.spec.first_visible(pool.written(handle)))
    assert pool.written(handle) > 4000


@pytest.mark.parametrize(
    ("groups", "num_blocks", "max_seqs", "max_append"),
    [([], [], 1, None), ([FULL], [1, 2], 1, None), ([FULL], [1], 0, None), ([FULL], [1], 1, 0), ([FULL], [-1], 1, 1)],
)
def test_an_impossible_pool_is_refused(
    groups: list[CacheGroup], num_blocks: list[int], max_seqs: int, max_append: int | None
) -> None:
    with pytest.raises(InvalidArgument):
        CachePool(groups, 16, num_blocks, max_seqs, max_append)
