"""Behaviours of the prefix cache that deserve a sentence of their own, beside the state machine."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import pytest

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixDomain, PrefixHit, PrefixOptions, encode_tokens
from octavo.cache.refusals import BlocksExhausted, InvalidArgument, StaleHandle
from octavo.cache.sequence import SequenceHandle
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.step_batch import BlockCopy, FreshBlocks, StorageKind

DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED
FULL = CacheGroup(LayerSpec("full", 4, 2, 64, 64, 0.125), (0,))
SLIDING = CacheGroup(LayerSpec("sliding", 4, 2, 64, 64, 0.125, window=32), (1,))
RECURRENT = CacheGroup(LayerSpec("recurrent", 4, 2, 64, 64, 0.125), (2,))
EVERYONE = PrefixDomain()


@dataclass(frozen=True)
class StateCopy:
    num_bytes: int


def make_pool(
    groups: Sequence[CacheGroup] = (FULL,), num_blocks: int = 20, options: PrefixOptions | None = None
) -> CachePool:
    blocks = [0 if group.spec.kind == "recurrent" else num_blocks for group in groups]
    return CachePool(groups, 16, blocks, 6, prefix=options)


def look_up(
    pool: CachePool, tokens: Sequence[int], domain: PrefixDomain = EVERYONE, storage: StorageKind = PAGED, keep: int = 0
) -> PrefixHit:
    return pool.prefix.match(domain, encode_tokens(tokens), storage, keep)


def write(
    pool: CachePool, name: str, tokens: Sequence[int], domain: PrefixDomain = EVERYONE, storage: StorageKind = PAGED
) -> SequenceHandle:
    """A sequence that has computed and donated `tokens`, from scratch."""
    hit = look_up(pool, tokens[:1], domain, storage)
    handle = pool.allocate(name, storage, len(tokens) + 40, prefix=hit)
    for start in range(0, len(tokens), pool.max_append_tokens or len(tokens)):
        pool.append(handle, min(len(tokens) - start, pool.max_append_tokens or len(tokens)))
    pool.donate(handle, lambda start, stop: tokens[start:stop], len(tokens))
    return handle


def cache(pool: CachePool, name: str, tokens: Sequence[int], domain: PrefixDomain = EVERYONE) -> None:
    pool.release(write(pool, name, tokens, domain))


def refused(pool: CachePool, kind: type[Exception], call: Callable[[], object], message: str = "") -> None:
    before = pickle.dumps(pool)
    with pytest.raises(kind, match=message):
        call()
    assert pickle.dumps(pool) == before


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_a_hit_is_whole_blocks_and_leaves_at_least_one_token_to_compute(length: int) -> None:
    pool, tokens = make_pool(), list(range(length))
    cache(pool, "a", tokens)
    for _ in range(2):
        hit = look_up(pool, tokens)
        assert hit.num_tokens == (length - 1) // 16 * 16
        pool.release(pool.allocate("b", PAGED, length + 5, prefix=hit))
    assert look_up(pool, [*tokens, 7, 7]).num_tokens == length // 16 * 16


def test_a_sequence_begins_in_the_cached_blocks_and_tells_the_planner_of_them() -> None:
    pool, tokens = make_pool(), list(range(40))
    cache(pool, "a", tokens)
    handle = pool.allocate("b", PAGED, 60, prefix=look_up(pool, tokens))
    assert (pool.written(handle), pool.table(handle, 0)) == (32, (0, 1))
    assert pool.append(handle, 8) == (FreshBlocks(0, 0, (0, 1, 2)),)
    pool.rollback_append(handle, 8)
    assert pool.append(handle, 8) == (FreshBlocks(0, 0, (0, 1, 2)),), "a planner that never saw the step hears it all"
    counters = pool.prefix.counters
    assert (counters.hits, counters.misses, counters.hit_tokens) == (1, 1, 32)


def test_a_block_is_shared_only_once_it_was_written() -> None:
    pool, tokens = make_pool(), list(range(64))
    first = pool.allocate("a", PAGED, 80, prefix=look_up(pool, tokens))
    pool.append(first, 64)
    assert look_up(pool, tokens).num_tokens == 0
    pool.donate(first, lambda start, stop: tokens[start:stop], 20)
    assert look_up(pool, tokens).num_tokens == 16


def test_identical_prompts_at_once_keep_their_own_blocks_and_add_them_once() -> None:
    pool, tokens = make_pool(), list(range(48))
    first, second = write(pool, "a", tokens), write(pool, "b", tokens)
    assert set(pool.table(first, 0)).isdisjoint(pool.table(second, 0))
    assert pool.prefix.held_blocks(0) == list(pool.table(first, 0))
    pool.release(first)
    pool.release(second)
    assert pool.num_cached_blocks == (3,)


@pytest.mark.parametrize("field", [field.name for field in fields(PrefixDomain)])
def test_whatever_changes_keys_and_values_separates_prefixes(field: str) -> None:
    pool, tokens = make_pool(), list(range(40))
    cache(pool, "a", tokens)
    assert look_up(pool, tokens, replace(EVERYONE, **{field: "other"})).num_tokens == 0
    assert look_up(pool, tokens).num_tokens == 32


def test_the_same_text_in_another_field_is_another_domain() -> None:
    encoded = {PrefixDomain(adapter="ab").encoded(), PrefixDomain(salt="ab").encoded()}
    encoded |= {PrefixDomain(adapter="a", template="b").encoded(), PrefixDomain().encoded()}
    assert len(encoded) == 4


def constant(data: bytes) -> bytes:
    return b""


def one_byte(data: bytes) -> bytes:
    return bytes([sum(data) % 256])


@pytest.mark.parametrize("digest", [constant, one_byte])
def test_colliding_hashes_mix_neither_tokens_nor_domains(digest: Callable[[bytes], bytes]) -> None:
    pool = make_pool(num_blocks=400, options=PrefixOptions(digest=digest))
    prompts = [[(i * 7 + b * 3 + t) % 1000 for b in range(3) for t in range(16)] + [1] for i in range(50)]
    domains = [PrefixDomain(salt=str(i % 3)) for i in range(50)]
    for i, (prompt, domain) in enumerate(zip(prompts, domains, strict=True)):
        assert look_up(pool, prompt, domain).num_tokens == 0
        cache(pool, str(i), prompt, domain)
    blocks = [look_up(pool, prompt, domain).blocks for prompt, domain in zip(prompts, domains, strict=True)]
    assert len({blocks for (blocks,) in blocks}) == 50 and all(len(blocks) == 3 for (blocks,) in blocks)
    pool.check_integrity()


def test_the_least_recently_used_prefix_goes_first_and_from_its_end() -> None:
    pool = make_pool(num_blocks=9)
    old, recent, used = ([i * 100 + t for t in range(48)] for i in range(3))
    for name, tokens in (("u", used), ("o", old), ("r", recent)):
        cache(pool, name, tokens)
    pool.release(pool.allocate("x", PAGED, 80, prefix=look_up(pool, [*used, 1])))
    pool.append(pool.allocate("new", PAGED, 64), 64)
    kept = [look_up(pool, [*tokens, 1]).num_tokens for tokens in (old, recent, used)]
    assert kept == [0, 32, 48]
    assert pool.prefix.counters.evictions == 4


def test_a_shared_beginning_outlives_the_ends_that_hang_on_it() -> None:
    pool = make_pool(num_blocks=6)
    stem = list(range(32))
    cache(pool, "a", [*stem, *[1] * 16])
    cache(pool, "b", [*stem, *[2] * 16])
    assert pool.num_cached_blocks == (4,)
    pool.append(pool.allocate("new", PAGED, 48), 48)
    assert look_up(pool, [*stem, *[2] * 16, 9]).num_tokens == 48
    assert look_up(pool, [*stem, *[1] * 16, 9]).num_tokens == 32


def test_what_is_cached_counts_as_available_and_what_is_in_use_is_never_evicted() -> None:
    pool = make_pool(num_blocks=4)
    cache(pool, "a", list(range(48)))
    assert pool.num_free_blocks == (4,) and pool.can_allocate(PAGED, 64)
    user = pool.allocate("b", PAGED, 33, prefix=look_up(pool, list(range(33))))
    other = pool.allocate("c", PAGED, 64)
    refused(pool, BlocksExhausted, lambda: pool.append(other, 48), "needs 3 more blocks in group 0; 2 of 4")
    pool.append(other, 32)
    assert pool.table(user, 0) == (0, 1)
    assert look_up(pool, list(range(33))).num_tokens == 32


def test_a_dense_run_is_made_by_evicting_what_stands_in_its_way() -> None:
    pool = make_pool(num_blocks=6)
    keeper = write(pool, "k", [5] * 16)
    for name in "abcd":
        cache(pool, name, [ord(name)] * 16)
    assert pool.longest_runs() == (5,)
    dense = pool.allocate("d", DENSE, 80)
    assert pool.table(dense, 0) == (1, 2, 3, 4, 5) and pool.table(keeper, 0) == (0,)


def test_a_dense_sequence_gives_its_blocks_and_begins_with_copies() -> None:
    pool, tokens = make_pool(), list(range(40))
    dense = write(pool, "a", tokens, storage=DENSE)
    hit = look_up(pool, tokens, storage=DENSE)
    second = pool.allocate("b", DENSE, 64, prefix=hit)
    assert (pool.written(second), pool.table(second, 0)) == (32, (5, 6, 7, 8))
    pool.release(dense)
    pool.append(second, 8)
    assert pool.copies(second) == (BlockCopy(0, 0, 5), BlockCopy(0, 1, 6))
    pool.append(second, 1)
    assert pool.copies(second) == () and pool.num_cached_blocks == (2,)
    pool.check_integrity()


def test_the_byte_limit_evicts_the_oldest_and_keeps_out_what_has_no_room() -> None:
    pool = make_pool(options=PrefixOptions(limit_bytes=50, bytes_per_block=(10,)))
    cache(pool, "a", [1] * 48)
    cache(pool, "b", [2] * 48)
    assert pool.prefix.num_bytes == 50
    assert (look_up(pool, [1] * 49).num_tokens, look_up(pool, [2] * 49).num_tokens) == (32, 48)
    cache(pool, "c", [3] * 160)
    assert look_up(pool, [3] * 161).num_tokens == 80 and pool.prefix.counters.rejects == 1
    pool.prefix.set_limit(20)
    assert pool.prefix.num_bytes == 20
    pool.prefix.set_limit(0)
    assert pool.num_cached_blocks == (0,)


def test_a_lowered_limit_waits_for_whoever_uses_what_exceeds_it() -> None:
    pool = make_pool(options=PrefixOptions(bytes_per_block=(10,)))
    handle = write(pool, "a", [1] * 48)
    pool.prefix.set_limit(10)
    assert pool.prefix.num_bytes == 30
    pool.release(handle)
    assert pool.prefix.num_bytes == 10


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


def test_a_hit_on_a_window_needs_only_the_blocks_that_the_next_token_sees() -> None:
    pool = make_pool((FULL, SLIDING))
    tokens = list(range(100))
    cache(pool, "a", tokens)
    pool.prefix.evict(1, 20 - 3)  # first to last: blocks 3, 4, 5 are left
    assert look_up(pool, tokens).blocks[1] == (None, None, None, None, 4, 5)
    assert look_up(pool, tokens[:90]).num_tokens == 80
    assert look_up(pool, tokens[:70]).num_tokens == 0
    assert look_up(pool, tokens, keep=16).num_tokens == 0
    handle = pool.allocate("b", PAGED, 120, prefix=look_up(pool, tokens))
    assert pool.live_start(handle) == (0, 96 - 32 + 1)
    assert pool.append(handle, 4) == (
        FreshBlocks(0, 0, (0, 1, 2, 3, 4, 5, 6)),
        FreshBlocks(1, 4, (4, 5, 0)),
    )


def test_state_outside_of_blocks_is_found_only_where_a_snapshot_was_attached() -> None:
    pool, tokens = make_pool((FULL, RECURRENT)), list(range(80))
    cache(pool, "a", tokens)
    assert look_up(pool, tokens).num_tokens == 0
    snapshot = StateCopy(500)
    assert pool.prefix.attach_snapshot(EVERYONE, encode_tokens(tokens[:48]), snapshot)
    hit = look_up(pool, tokens)
    assert (hit.num_tokens, hit.snapshot) == (48, snapshot)
    assert look_up(pool, tokens[:48]).num_tokens == 0
    pool.prefix.evict(0, 20 - 2)
    assert look_up(pool, tokens).num_tokens == 0 and pool.prefix.num_bytes == 2


def test_a_snapshot_needs_its_blocks_and_room() -> None:
    pool, tokens = make_pool((FULL, RECURRENT), options=PrefixOptions(limit_bytes=100)), list(range(48))
    run = encode_tokens(tokens)
    assert not pool.prefix.attach_snapshot(EVERYONE, run, StateCopy(5))
    cache(pool, "a", tokens)
    assert not pool.prefix.attach_snapshot(EVERYONE, run, StateCopy(101))
    with pytest.raises(InvalidArgument, match="offered at 47 tokens; it must be at a multiple of 16"):
        pool.prefix.attach_snapshot(EVERYONE, encode_tokens(tokens[:47]), StateCopy(5))


def test_an_unfilled_block_that_a_fork_shares_is_copied_by_whoever_writes_on() -> None:
    pool = make_pool()
    first = pool.allocate("a", PAGED, 60)
    pool.append(first, 20)
    second = pool.fork(first, "b")
    assert pool.table(second, 0) == (0, 1)
    assert pool.append(second, 1) == (FreshBlocks(0, 0, (0, 2)),)
    assert pool.copies(second) == (BlockCopy(0, 1, 2),)
    pool.rollback_append(second, 1)
    assert pool.append(second, 1) == (FreshBlocks(0, 0, (0, 2)),)
    assert pool.copies(second) == (BlockCopy(0, 1, 2),), "a step that failed may not have made its copy"
    pool.append(second, 1)
    assert pool.copies(second) == () and pool.table(first, 0) == (0, 1)


def test_a_cached_block_that_a_trim_has_opened_again_is_not_written() -> None:
    pool, tokens = make_pool(num_blocks=2), list(range(32))
    handle = write(pool, "a", tokens[:32])
    pool.trim_tail(handle, 3)
    pool.append(handle, 1)
    assert pool.copies(handle) == () and look_up(pool, [*tokens, 1]).num_tokens == 16, "no block to copy to: forgotten"
    roomy = make_pool(num_blocks=3)
    handle = write(roomy, "a", tokens)
    roomy.trim_tail(handle, 3)
    roomy.append(handle, 1)
    assert roomy.copies(handle) == (BlockCopy(0, 1, 2),) and look_up(roomy, [*tokens, 1]).num_tokens == 32


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
    assert pool.copies(heir) == (BlockCopy(0, 0, 3), BlockCopy(0, 1, 4))
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


def test_a_shift_leaves_blocks_that_others_share_as_they_are() -> None:
    pool, tokens = make_pool(), list(range(64))
    cache(pool, "a", tokens)
    first, second = (pool.allocate(name, PAGED, 80, prefix=look_up(pool, [*tokens, 1])) for name in "bc")
    pool.shift(first, 16)
    assert pool.table(first, 0) == (None, 4, 5, 6) and pool.table(second, 0) == (0, 1, 2, 3)
    pool.append(first, 1)
    assert pool.copies(first) == (BlockCopy(0, 1, 4), BlockCopy(0, 2, 5), BlockCopy(0, 3, 6))
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


def test_a_hit_that_does_not_suit_or_is_stale_is_refused() -> None:
    pool, tokens = make_pool(), list(range(48))
    cache(pool, "a", tokens)
    hit = look_up(pool, tokens)
    refused(pool, InvalidArgument, lambda: pool.allocate("b", DENSE, 60, prefix=hit), "does not suit a dense")
    refused(pool, InvalidArgument, lambda: pool.allocate("b", PAGED, 31, prefix=hit), "does not suit")
    refused(pool, InvalidArgument, lambda: pool.allocate("b", PAGED, 60, 16, prefix=hit), "with keep 16")
    pool.prefix.evict(0, 19)
    refused(pool, InvalidArgument, lambda: pool.allocate("b", PAGED, 60, prefix=hit), "was evicted since")
    refused(pool, InvalidArgument, lambda: pool.pin(hit), "was evicted since")


@pytest.mark.parametrize("options", [PrefixOptions(limit_bytes=-1), PrefixOptions(bytes_per_block=(1, 2))])
def test_impossible_options_are_refused(options: PrefixOptions) -> None:
    with pytest.raises(InvalidArgument):
        make_pool(options=options)


def test_a_token_that_is_no_32_bit_number_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no 32-bit integer"):
        encode_tokens([1, 2**31])


def test_an_idle_beginning_that_others_blocks_hang_on_is_evicted_and_these_are_forgotten() -> None:
    pool, tokens = make_pool(num_blocks=8), list(range(64))
    first = write(pool, "a", tokens[:32])
    second = write(pool, "b", tokens)  # its copies of the first two blocks are not taken in
    pool.release(first)
    assert (pool.num_cached_blocks, pool.num_free_blocks) == ((2,), (4,))
    pool.append(pool.allocate("c", PAGED, 64), 64)
    assert look_up(pool, tokens).num_tokens == 0
    assert pool.written(second) == 64 and pool.prefix.held_blocks(0) == []
    pool.check_integrity()


def test_an_idle_copy_gives_way_to_a_live_one_of_the_same_tokens() -> None:
    pool, tokens = make_pool(num_blocks=8), list(range(48))
    first, second = write(pool, "a", tokens[:32]), pool.allocate("b", PAGED, 64, prefix=look_up(pool, tokens[:1]))
    pool.release(first)
    pool.append(second, 48)
    pool.donate(second, lambda start, stop: tokens[start:stop], 48)
    assert pool.num_cached_blocks == (0,) and pool.num_free_blocks == (5,)
    assert look_up(pool, [*tokens, 1]).blocks == (pool.table(second, 0),)


def test_a_window_that_leaves_a_shared_block_behind_claims_another_in_its_place() -> None:
    pool = CachePool([SLIDING], 16, [20], 3, max_append_tokens=16)
    first = write(pool, "a", list(range(32)))
    second = pool.allocate("b", PAGED, 500, prefix=look_up(pool, list(range(33))))
    before = pool.available_blocks()
    for _ in range(4):
        pool.append(second, 16)
        pool.trim_front(second, 0, SLIDING.spec.first_visible(pool.written(second)))
        assert pool.available_blocks() >= before, "moving on takes nothing that was promised to others"
    pool.release(first)
    pool.check_integrity()


def test_a_new_prompt_that_shares_a_window_costs_all_that_it_may_come_to_hold() -> None:
    pool = CachePool([SLIDING], 16, [20], 3, max_append_tokens=16)
    first = write(pool, "a", list(range(32)))
    hit = look_up(pool, list(range(33)))
    assert pool.blocks_to_admit(PAGED, 500, prefix=hit) == (4 + 2,), "its own four, and two that the first now shares"
    before = pool.available_blocks()[0]
    pool.allocate("b", PAGED, 500, prefix=hit)
    assert pool.available_blocks()[0] == before - 6
    pool.release(first)
    assert pool.available_blocks()[0] == 20 - 4
