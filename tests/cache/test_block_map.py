"""The drawing of blocks: every block is told as it is, in as many cells as asked for, and nothing is changed."""

from __future__ import annotations

import pickle
import random

from prefix_pools import DENSE, FULL, PAGED, RECURRENT, SLIDING, cache, look_up, make_pool, write

from octavo.cache.block_map import MAX_OWNERS, STATES, GroupMap, block_maps
from octavo.cache.cache_pool import CachePool


def cells(drawn: GroupMap) -> list[tuple[str, tuple[str, ...], int, int, int]]:
    """State, owners, used blocks, tokens and references of each cell."""
    return [
        (STATES[state], () if owners < 0 else drawn.owners[owners], used, tokens, references)
        for length, state, owners, used, tokens, references in drawn.runs
        for _ in range(length)
    ]


def counts(drawn: GroupMap) -> dict[str, int]:
    return dict(zip(STATES, drawn.counts, strict=True))


def check(pool: CachePool) -> None:
    """What is drawn is what the pool says of each block, by its public methods alone."""
    for group, (drawn, blocks) in enumerate(zip(block_maps(pool), pool.pools, strict=True)):
        found = cells(drawn)
        assert len(found) == blocks.num_blocks == drawn.num_blocks
        for block_id, (state, owners, used, _, references) in enumerate(found):
            assert references == blocks.refcount(block_id)
            assert used == (references > 0) == (state != "free")
            assert (state == "cached") is blocks.is_idle(block_id)
            assert state != "shared" or blocks.is_shared(block_id)
            holders = [each.seq_id for each in pool.sequences() if block_id in pool.table(each.handle, group)]
            assert set(owners) == set(holders) and (state == "pinned") is (
                references > 0 and not holders and state != "cached"
            )
        told = counts(drawn)
        assert (told["free"], told["cached"]) == (blocks.num_free, blocks.num_cached)
        assert told["live"] + told["shared"] + told["pinned"] == blocks.num_live


def test_an_empty_pool_is_one_run_of_free_cells() -> None:
    [drawn] = block_maps(make_pool())
    assert drawn.runs == ((20, 0, -1, 0, 0, 0),)
    assert drawn.counts == (20, 0, 0, 0, 0) and drawn.owners == ()


def test_a_sequence_is_told_by_its_name_its_tokens_and_its_references() -> None:
    pool = make_pool()
    write(pool, "a", list(range(37)))
    [drawn] = block_maps(pool)
    assert cells(drawn)[:4] == [
        ("live", ("a",), 1, 16, 2),  # the prefix cache holds full ones too
        ("live", ("a",), 1, 16, 2),
        ("live", ("a",), 1, 5, 1),
        ("free", (), 0, 0, 0),
    ]
    check(pool)


def test_what_a_dense_sequence_has_not_reached_yet_holds_no_tokens() -> None:
    pool = make_pool()
    write(pool, "a", list(range(20)), storage=DENSE)
    [drawn] = block_maps(pool)
    assert [cell[3] for cell in cells(drawn)[:5]] == [16, 4, 0, 0, 0]
    assert [cell[0] for cell in cells(drawn)[:5]] == ["live"] * 4 + ["free"]


def test_shared_cached_and_pinned_blocks_are_told_apart() -> None:
    pool, tokens = make_pool(num_blocks=20), list(range(48))
    cache(pool, "gone", tokens)
    other = [100 + token for token in tokens]
    cache(pool, "other", other)
    pool.pin(look_up(pool, other))
    for name in ("a", "b"):
        pool.allocate(name, PAGED, 80, prefix=look_up(pool, tokens))
    [drawn] = block_maps(pool)
    assert cells(drawn)[:6] == [
        ("shared", ("a", "b"), 1, 16, 3),
        ("shared", ("a", "b"), 1, 16, 3),
        ("cached", (), 1, 16, 1),
        ("pinned", (), 1, 16, 2),
        ("pinned", (), 1, 16, 2),
        ("cached", (), 1, 16, 1),
    ]
    check(pool)


def test_a_block_of_many_names_the_first_of_them() -> None:
    pool = CachePool((FULL,), 16, [4], 2 * MAX_OWNERS)
    first = pool.allocate("0", PAGED, 16)
    pool.append(first, 5)
    for i in range(1, 2 * MAX_OWNERS):
        pool.fork(first, str(i))
    [drawn] = block_maps(pool)
    assert cells(drawn)[0] == ("shared", tuple(map(str, range(MAX_OWNERS))), 1, 5, 2 * MAX_OWNERS)


def test_a_large_pool_is_told_in_few_cells_that_add_up() -> None:
    pool = CachePool((FULL,), 16, [1000], 6)
    pool.append(pool.allocate("a", PAGED, 16 * 150), 16 * 150 - 3)
    [drawn] = block_maps(pool, max_cells=64)
    found = cells(drawn)
    assert drawn.blocks_per_cell == 16 and len(found) == 63
    assert sum(cell[2] for cell in found) == sum(cell[4] for cell in found) == 150
    assert sum(cell[3] for cell in found) == 16 * 150 - 3
    assert [cell[0] for cell in found[8:11]] == ["live", "live", "free"] and found[9][2] == 6
    assert drawn.counts == (850, 150, 0, 0, 0)


def test_a_group_without_blocks_has_no_cells() -> None:
    drawn = block_maps(make_pool((FULL, RECURRENT)))[1]
    assert (drawn.num_blocks, drawn.runs, drawn.counts) == (0, (), (0,) * 5)


def test_whatever_happened_to_a_pool_is_drawn_as_it_is_and_drawing_changes_nothing() -> None:
    for seed in range(8):
        draw = random.Random(seed)
        pool = make_pool((FULL, SLIDING), num_blocks=40)
        handles, parked = [], []
        for i in range(60):
            tokens = [draw.randrange(2)] * draw.randrange(1, 70)
            act = draw.randrange(6)
            if act <= 1 and pool.num_free_slots and pool.can_allocate(PAGED, len(tokens) + 40):
                hit = look_up(pool, tokens)
                handle = pool.allocate(str(i), PAGED, len(tokens) + 40, prefix=hit)
                pool.append(handle, len(tokens) - hit.num_tokens)
                pool.donate(handle, lambda start, stop, tokens=tokens: tokens[start:stop], len(tokens))
                handles.append(handle)
            elif act == 2 and handles:
                pool.release(handles.pop(draw.randrange(len(handles))))
            elif act == 3 and handles:
                handle = draw.choice(handles)
                pool.trim_front(handle, 1, SLIDING.spec.first_visible(pool.written(handle)))
            elif act == 4 and handles and len(parked) < 2:
                parked.append(pool.detach(handles.pop()))
            elif act == 5 and parked:
                pool.drop(parked.pop())
            before = pickle.dumps(pool)
            check(pool)
            assert pickle.dumps(pool) == before
