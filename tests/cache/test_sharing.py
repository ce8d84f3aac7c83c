"""Forks, parked and pinned sequences, and context shifts: who may write which block, and what comes back."""

from __future__ import annotations

import pytest
from prefix_pools import (
    DENSE,
    FULL,
    PAGED,
    SLIDING,
    StateCopy,
    cache,
    look_up,
    make_pool,
    refused,
    write,
)

from octavo.cache.refusals import InvalidArgument, StaleHandle
from octavo.step_batch import BlockCopy, FreshBlocks, StorageKind


def test_a_dense_sequence_gives_its_blocks_and_begins_with_copies() -> None:
    pool, tokens = make_pool(), list(range(40))
    dense = write(pool, "a", tokens, storage=DENSE)
    hit = look_up(pool, tokens, storage=DENSE)
    second = pool.allocate("b", DENSE, 64, prefix=hit)
    assert (pool.written(second), pool.table(second, 0)) == (32, (5, 6, 7, 8))
    pool.release(dense)
    pool.append(second, 8)
    assert pool.copies(second) == (BlockCopy(0, 0, 5, serial=0), BlockCopy(0, 1, 6, serial=0))
    pool.append(second, 1)
    assert pool.copies(second) == () and pool.num_cached_blocks == (2,)
    pool.check_integrity()


def test_a_pinned_prefix_is_not_evicted_until_it_is_dropped() -> None:
    pool, tokens = make_pool(num_blocks=5), list(range(48))
    cache(pool, "a", tokens)
    pinned = pool.pin(look_up(pool, tokens))
    assert pool.available_blocks() == (3,)
    pool.append(filler := pool.allocate("x", PAGED, 48), 48)
    assert look_up(pool, tokens).num_tokens == 32
    pool.release(filler)
    heir = pool.adopt(pinned, "b", 60)
    assert pool.written(heir) == 32
    pool.release(heir)
    pool.drop(pinned)
    pool.append(pool.allocate("y", PAGED, 80), 80)
    assert look_up(pool, tokens).num_tokens == 0


def test_an_unfilled_block_that_a_fork_shares_is_copied_by_whoever_writes_on() -> None:
    pool = make_pool()
    first = pool.allocate("a", PAGED, 60)
    pool.append(first, 20)
    second = pool.fork(first, "b")
    assert pool.table(second, 0) == (0, 1)
    assert pool.append(second, 1) == (FreshBlocks(0, 0, (0, 2)),)
    assert pool.copies(second) == (BlockCopy(0, 1, 2, serial=0),)
    pool.rollback_append(second, 1)
    assert pool.append(second, 1) == (FreshBlocks(0, 0, (0, 2)),)
    assert pool.copies(second) == (BlockCopy(0, 1, 2, serial=0),), "a step that failed may not have made its copy"
    pool.append(second, 1)
    assert pool.copies(second) == () and pool.table(first, 0) == (0, 1)


def test_a_cached_block_that_a_trim_has_opened_again_leaves_the_cache() -> None:
    """Else whoever began with it would make the sequence's next token cost another block."""
    pool, tokens = make_pool(num_blocks=3), list(range(32))
    handle = write(pool, "a", tokens)
    assert look_up(pool, [*tokens, 1]).num_tokens == 32
    pool.trim_tail(handle, 3)
    assert look_up(pool, [*tokens, 1]).num_tokens == 16
    pool.append(handle, 1)
    assert pool.copies(handle) == () and pool.table(handle, 0) == (0, 1)
    pool.check_integrity()


def test_a_parked_sequence_keeps_its_blocks_and_can_be_adopted_again_and_again() -> None:
    pool = make_pool(num_blocks=6)
    handle = pool.allocate("a", PAGED, 40)
    pool.append(handle, 20)
    parked = pool.detach(handle)
    assert pool.num_free_slots == 6 and pool.num_free_blocks == (4,)
    for name in "bc":
        heir = pool.adopt(parked, name)
        pool.append(heir, 1)
        assert pool.table(heir, 0)[0] == 0 and len(pool.copies(heir)) == 1
        pool.release(heir)
    back = pool.unpark(parked, "a")
    pool.append(back, 1)
    assert pool.table(back, 0) == (0, 1) and pool.copies(back) == ()
    refused(pool, StaleHandle, lambda: pool.drop(parked), "was unparked or dropped")
    pool.release(back)
    pool.check_idle()


def test_a_dense_sequence_is_parked_with_its_run_and_not_without_a_snapshot_of_its_rings() -> None:
    pool = make_pool()
    dense = pool.allocate("a", DENSE, 40)
    pool.append(dense, 20)
    parked = pool.detach(dense)
    heir = pool.adopt(parked, "b")
    pool.append(heir, 1)
    assert pool.copies(heir) == (BlockCopy(0, 0, 3, serial=0), BlockCopy(0, 1, 4, serial=0))
    assert pool.table(pool.unpark(parked, "a"), 0) == (0, 1, 2)
    ringed = make_pool((FULL, SLIDING))
    dense = ringed.allocate("a", DENSE, 40)
    refused(ringed, InvalidArgument, lambda: ringed.detach(dense), "give a snapshot")
    refused(ringed, InvalidArgument, lambda: ringed.fork(dense, "b"), "give a snapshot")
    assert ringed.detach(dense, StateCopy(3)).snapshot == StateCopy(3)


def test_a_context_shift_drops_whole_blocks_between_the_kept_and_the_live_ones() -> None:
    pool = make_pool((FULL, SLIDING))
    handle = pool.allocate("a", PAGED, 96, keep=16)
    pool.append(handle, 96)
    pool.trim_front(handle, 1, 96 - 31)
    refused(pool, InvalidArgument, lambda: pool.append(handle, 1), "cannot append 1 tokens to 96 of at most 96")
    assert pool.shift(handle, 32) == ((2, 1), ())
    state = pool.sequence(handle)
    assert (state.written, state.rope_position, state.visible(0)) == (96, 64, 64)
    assert pool.table(handle, 0) == (0, None, None, 3, 4, 5)
    assert pool.live_start(handle) == (48, 65)
    pool.append(handle, 32)
    pool.trim_tail(handle, 32)
    assert pool.live_start(handle) == (48, 65)


def test_a_shifted_sequence_is_not_rewound_to_before_what_it_dropped() -> None:
    pool = make_pool()
    handle = pool.allocate("a", PAGED, 96, keep=16)
    pool.append(handle, 96)
    pool.shift(handle, 32)
    refused(pool, InvalidArgument, lambda: pool.trim_tail(handle, 49), "cannot take back 49 tokens of 96")
    pool.trim_tail(handle, 48)
    assert pool.sequence(handle).visible(0) == 16


def test_keys_that_a_shift_passed_over_are_not_seen_again() -> None:
    """The window hid them, so they were not rotated with the others, although their block is still there."""
    pool = make_pool((SLIDING,))
    handle = pool.allocate("a", PAGED, 96)
    pool.append(handle, 60)
    pool.trim_front(handle, 0, 29)
    pool.shift(handle, 16)
    refused(pool, InvalidArgument, lambda: pool.trim_tail(handle, 1), "no longer holds the window")
    pool.append(handle, 3)
    pool.trim_tail(handle, 3)
    assert pool.sequence(handle).visible(0) == 31


def test_a_shift_leaves_blocks_that_others_share_as_they_are() -> None:
    pool, tokens = make_pool(), list(range(64))
    cache(pool, "a", tokens)
    first, second = (pool.allocate(name, PAGED, 80, prefix=look_up(pool, [*tokens, 1])) for name in "bc")
    pool.shift(first, 16)
    assert pool.table(first, 0) == (None, 4, 5, 6) and pool.table(second, 0) == (0, 1, 2, 3)
    pool.append(first, 1)
    assert pool.copies(first) == (
        BlockCopy(0, 1, 4, serial=0),
        BlockCopy(0, 2, 5, serial=0),
        BlockCopy(0, 3, 6, serial=0),
    )
    assert look_up(pool, [*tokens, 1]).num_tokens == 64
    pool.donate(first, lambda start, stop: tokens[start:stop], 64)
    assert set(pool.prefix.held_blocks(0)) == {0, 1, 2, 3}, "its keys are rotated otherwise now"


@pytest.mark.parametrize(
    ("storage", "keep", "drop", "message"),
    [
        (DENSE, 0, 16, "cannot shift"),
        (PAGED, 5, 16, "round both to multiples of 16"),
        (PAGED, 0, 15, "round both"),
        (PAGED, 0, 0, "0 tokens are to go"),
        (PAGED, 16, 48, "24 are there"),
    ],
)
def test_an_impossible_shift_is_refused(storage: StorageKind, keep: int, drop: int, message: str) -> None:
    pool = make_pool()
    handle = pool.allocate("a", storage, 64, keep)
    pool.append(handle, 40)
    refused(pool, InvalidArgument, lambda: pool.shift(handle, drop), message)
