"""`BlockPool` against a dictionary of counts, as a state machine, and its refusals one by one."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.cache.block_pool import MAX_BLOCKS, BlockPool
from octavo.cache.refusals import BlocksExhausted, InvalidArgument
from octavo.errors import CapacityError, EngineFault


def refused(pool: BlockPool, kind: type[Exception], call: Callable[[], object]) -> None:
    before = pickle.dumps(pool)
    with pytest.raises(kind):
        call()
    assert pickle.dumps(pool) == before


class BlockPoolMachine(RuleBasedStateMachine):
    """The model: how often each block is referenced. Everything the pool answers follows from it by scanning."""

    def __init__(self) -> None:
        super().__init__()
        self.start(0)

    @initialize(num_blocks=st.sampled_from([0, 1, 7, 40, 600, 1100]))
    def resize(self, num_blocks: int) -> None:
        self.start(num_blocks)

    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, 16)
        self.counts = [0] * num_blocks

    @property
    def free(self) -> list[int]:
        return [i for i, count in enumerate(self.counts) if not count]

    @property
    def live(self) -> list[int]:
        return [i for i, count in enumerate(self.counts) if count]

    @rule(n=st.one_of(st.integers(0, 12), st.integers(0, 1200)))
    def allocate(self, n: int) -> None:
        free = self.free
        if n > len(free):
            refused(self.pool, BlocksExhausted, lambda: self.pool.allocate(n))
            return
        assert self.pool.allocate(n) == tuple(free[:n])
        for block_id in free[:n]:
            self.counts[block_id] = 1

    @rule(n=st.one_of(st.integers(0, 12), st.integers(0, 1200)))
    def allocate_run(self, n: int) -> None:
        start = next((i for i in range(len(self.counts) - n + 1) if not any(self.counts[i : i + n])), None)
        if start is None:
            refused(self.pool, BlocksExhausted, lambda: self.pool.allocate_run(n))
            return
        assert self.pool.allocate_run(n) == (tuple(range(start, start + n)))
        self.counts[start : start + n] = [1] * n

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.live), max_size=6)) if self.live else []
        self.pool.retain(ids)
        for block_id in ids:
            self.counts[block_id] += 1

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.live), max_size=30)) if self.live else []
        if any(times > self.counts[block_id] for block_id, times in Counter(ids).items()):
            refused(self.pool, InvalidArgument, lambda: self.pool.release(ids))
            return
        freed = []
        for block_id in reversed(ids):
            self.counts[block_id] -= 1
            if not self.counts[block_id]:
                freed.append(block_id)
        assert self.pool.release(ids) == tuple(freed)

    @rule()
    def release_every_other(self) -> None:
        ids = [i for i in self.live if self.counts[i] == 1][::2]
        assert self.pool.release(ids) == tuple(reversed(ids))
        for block_id in ids:
            self.counts[block_id] = 0

    @rule(data=st.data(), times=st.integers(1, 3))
    def touch_a_free_block_among_live_ones(self, data: st.DataObject, times: int) -> None:
        if not self.free:
            return
        ids = [*self.live[:3], data.draw(st.sampled_from(self.free))] * times
        refused(self.pool, InvalidArgument, lambda: self.pool.retain(ids))
        refused(self.pool, InvalidArgument, lambda: self.pool.release(ids))

    @rule(outside=st.sampled_from([-1, 0, 5, 2**40]))
    def touch_a_block_that_does_not_exist(self, outside: int) -> None:
        block_id = outside if outside < 0 else outside + len(self.counts)
        ids = [*self.live[:2], block_id]
        refused(self.pool, InvalidArgument, lambda: self.pool.retain(ids))
        refused(self.pool, InvalidArgument, lambda: self.pool.release(ids))

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_live == len(self.live)
        assert [self.pool.refcount(i) for i in range(len(self.counts))] == self.counts


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=30)


@pytest.mark.nightly
@pytest.mark.skipif(os.environ.get("OCTAVO_NIGHTLY") != "1", reason="long; set OCTAVO_NIGHTLY=1")
class TestBlockPoolAtLength(BlockPoolMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(deadline=None, max_examples=3000, stateful_step_count=80)


def test_exhaustion_is_a_capacity_error_that_names_both_numbers() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(3)
    with pytest.raises(CapacityError, match=r"2 blocks are needed and 1 of 4 are free"):
        pool.allocate(2)


def test_a_run_is_refused_where_enough_blocks_are_free_in_pieces() -> None:
    pool = BlockPool(6, 16)
    pool.allocate(6)
    pool.release((0, 1, 3, 4))
    with pytest.raises(BlocksExhausted, match="4 of 6 are free, at most 2 in a row"):
        pool.allocate_run(3)
    assert pool.allocate_run(2) == (0, 1)


def test_misuse_is_an_engine_fault_not_a_capacity_error() -> None:
    with pytest.raises(EngineFault, match="block 0 is free and cannot be retained"):
        BlockPool(1, 16).retain((0,))


def test_a_shared_block_is_freed_by_its_last_holder_only() -> None:
    pool = BlockPool(3, 16)
    ids = pool.allocate(2)
    pool.retain(ids)
    assert pool.release(ids) == ()
    assert pool.release(ids) == (1, 0)


def test_a_block_named_more_often_than_it_is_held_is_refused_whole() -> None:
    pool = BlockPool(3, 16)
    pool.allocate(2)
    refused(pool, InvalidArgument, lambda: pool.release((0, 1, 0)))
    pool.retain((0,))
    assert pool.release((0, 1, 0)) == (1, 0)


@pytest.mark.parametrize("num_blocks", [-1, 2.0, True, MAX_BLOCKS + 1, 2**62])
def test_an_impossible_pool_is_refused_before_anything_is_built(num_blocks: int) -> None:
    with pytest.raises(InvalidArgument):
        BlockPool(num_blocks, 16)


@pytest.mark.parametrize("block_size", [0, 8, 17, 128])
def test_a_block_size_outside_the_supported_ones_is_refused(block_size: int) -> None:
    with pytest.raises(InvalidArgument, match="choose one of 16, 32, 64"):
        BlockPool(10, block_size)


@pytest.mark.parametrize("n", [-1, 1.0, True])
def test_a_count_that_is_no_count_is_refused(n: int) -> None:
    pool = BlockPool(10, 16)
    refused(pool, InvalidArgument, lambda: pool.allocate(n))
    refused(pool, InvalidArgument, lambda: pool.allocate_run(n))
