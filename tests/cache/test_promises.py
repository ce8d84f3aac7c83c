"""What a sequence is promised is set aside for it, and no more."""

from __future__ import annotations

import pytest

from octavo.cache.cache_pool import CachePool
from octavo.cache.refusals import InvalidArgument
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.step_batch import StorageKind

DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED
FULL = CacheGroup(LayerSpec("full", 4, 2, 64, 64, 0.125), (0,))
SLIDING = CacheGroup(LayerSpec("sliding", 4, 2, 64, 64, 0.125, 20), (1,))


def make_pool(num_blocks: tuple[int, int] = (12, 12)) -> CachePool:
    return CachePool([FULL, SLIDING], 16, num_blocks, 4, max_append_tokens=16)


def test_blocks_are_set_aside_for_the_promise_to_the_end_of_its_last_block() -> None:
    pool = make_pool()
    handle = pool.allocate("a", PAGED, 200, promised=20)
    assert pool.promised(handle) == 32
    assert pool.available_blocks() == (10, 10) and pool.num_free_blocks == (12, 12)
    pool.append(handle, 16)
    pool.append(handle, 16)
    assert pool.available_blocks() == pool.num_free_blocks == (10, 10)


def test_without_a_promise_and_for_dense_sequences_the_whole_length_is_set_aside() -> None:
    pool = make_pool()
    paged = pool.allocate("a", PAGED, 60)
    assert (pool.promised(paged), pool.available_blocks()) == (60, (8, 8))
    dense = pool.allocate("b", DENSE, 60, promised=5)
    assert pool.promised(dense) == 60


def test_nothing_is_appended_beyond_the_promise_and_nothing_promised_beyond_the_length() -> None:
    pool = make_pool()
    handle = pool.allocate("a", PAGED, 40, promised=16)
    pool.append(handle, 16)
    with pytest.raises(InvalidArgument, match="cannot append 1 tokens to 16 of at most 16"):
        pool.append(handle, 1)
    with pytest.raises(InvalidArgument, match="41 tokens are to be promised"):
        pool.promise(handle, 41)
    pool.promise(handle, 17)
    assert pool.promised(handle) == 32
    pool.append(handle, 1)
    pool.promise(handle, 40)
    pool.promise(handle, 3)
    assert pool.promised(handle) == 40, "never less"


def test_growth_tells_what_a_promise_takes_and_keeps_available_blocks_exact() -> None:
    pool = make_pool()
    handle = pool.allocate("a", PAGED, 192, promised=16)
    for tokens in range(1, 193):
        growth, before = pool.growth(handle, tokens), pool.available_blocks()
        assert growth == (0, 0) or tokens % 16 == 1
        pool.promise(handle, tokens)
        assert pool.available_blocks() == tuple(b - g for b, g in zip(before, growth, strict=True))
        pool.append(handle, 1)
        pool.trim_front(handle, 1, SLIDING.spec.first_visible(tokens))
        assert min(pool.available_blocks()) >= 0
    assert pool.available_blocks()[0] == 0
    pool.check_integrity()


@pytest.mark.parametrize(
    ("promised", "outgrows"), [(1, (1, 1)), (16, (1, 1)), (17, (1, 1)), (64, (1, 0)), (185, (0, 0))]
)
def test_who_may_outgrow_its_promise_is_told_per_group(promised: int, outgrows: tuple[int, int]) -> None:
    assert make_pool().may_outgrow(PAGED, promised, 192) == outgrows
