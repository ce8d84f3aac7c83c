"""Behaviours of the prefix cache that deserve a sentence of their own, beside the state machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from prefix_pools import (
    DENSE,
    EVERYONE,
    FULL,
    PAGED,
    RECURRENT,
    SLIDING,
    StateCopy,
    cache,
    look_up,
    make_pool,
    refused,
    write,
)

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixDomain, PrefixOptions, encode_tokens
from octavo.cache.refusals import BlocksExhausted, InvalidArgument
from octavo.step_batch import FreshBlocks


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


def test_a_sequence_whose_cached_beginning_gave_way_to_another_goes_on_in_its_own() -> None:
    pool, tokens = make_pool(num_blocks=12), list(range(64))
    others = [*tokens[:16], *range(100, 132)]
    first, second = write(pool, "a", tokens[:48]), pool.allocate("b", PAGED, 64, prefix=look_up(pool, tokens[:1]))
    pool.append(second, 48)
    pool.donate(second, lambda start, stop: tokens[start:stop], 48)  # the cache has these, in the first one's blocks
    pool.release(first)
    third = pool.allocate("c", PAGED, 64, prefix=look_up(pool, others))
    pool.prefix.evict(0, pool.num_free_blocks[0])
    pool.append(third, 32)
    pool.donate(third, lambda start, stop: others[start:stop], 48)
    pool.append(second, 16)
    pool.donate(second, lambda start, stop: tokens[start:stop], 64)
    assert look_up(pool, [*others, *tokens[48:], 1]).blocks == (pool.table(third, 0),)
    assert look_up(pool, [*tokens, 1]).num_tokens == 64
    pool.check_integrity()


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
