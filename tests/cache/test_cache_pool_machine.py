"""`CachePool` against a naive model that keeps free ids in sets and tables in dictionaries."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.cache.cache_pool import CachePool
from octavo.cache.refusals import BlocksExhausted, DuplicateSequence, InvalidArgument, SlotsExhausted, StaleHandle
from octavo.cache.sequence import SequenceHandle
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.step_batch import FreshBlocks, StorageKind

DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED
SIZE = 16
WINDOW, CHUNK = 20, 24
NUM_BLOCKS = (14, 9, 8, 0)
MAX_SEQS, MAX_APPEND = 3, 40
FULL, SLIDING, CHUNKED, RECURRENT = range(4)
GROUPS = tuple(
    CacheGroup(LayerSpec(kind, 4, 2, 64, 64, 0.125, window), (layer,))  # type: ignore[arg-type]
    for layer, (kind, window) in enumerate(
        [("full", None), ("sliding", WINDOW), ("chunked", CHUNK), ("recurrent", None)]
    )
)


def seen(group: int, position: int) -> int:
    """First position that the token at `position` sees, found by looking at each."""
    if group == SLIDING:
        return next(q for q in range(position + 1) if position - q < WINDOW)
    if group == CHUNKED:
        return next(q for q in range(position + 1) if q // CHUNK == position // CHUNK)
    return 0


def blocks_of(tokens: int) -> int:
    return len({position // SIZE for position in range(tokens)})


@dataclass
class Model:
    """One sequence: per group its blocks by absolute index, the indices that front trims freed, and what was told."""

    seq_id: str
    storage: StorageKind
    max_tokens: int
    keep: int
    written: int = 0
    blocks: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in GROUPS])
    freed: list[set[int]] = field(default_factory=lambda: [set() for _ in GROUPS])
    told: list[int] = field(default_factory=lambda: [0 for _ in GROUPS])
    live: list[int] = field(default_factory=list)

    def length(self, group: int) -> int:
        return max([*self.blocks[group], *self.freed[group]], default=-1) + 1

    def can_rewind(self, written: int) -> bool:
        return not any(b >= seen(g, written) // SIZE for g in range(len(GROUPS)) for b in self.freed[g])

    def rewind(self, written: int) -> None:
        self.written = written
        for g in (SLIDING, CHUNKED):
            self.live[g] = min(self.live[g], max(self.keep, seen(g, written)))
        self.told = [min(told, blocks_of(written)) for told in self.told]


class CachePoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = CachePool(GROUPS, SIZE, NUM_BLOCKS, MAX_SEQS, MAX_APPEND)
        self.free = [set(range(n)) for n in NUM_BLOCKS]
        self.live: dict[SequenceHandle, Model] = {}
        self.stale: list[SequenceHandle] = []
        self.num_named = 0

    # -- helpers ------------------------------------------------------------------------------------------------

    def refused(self, kind: type[Exception], call: Callable[[], object]) -> None:
        before = pickle.dumps(self.pool)
        with pytest.raises(kind):
            call()
        assert pickle.dumps(self.pool) == before

    def pick(self, index: int) -> tuple[SequenceHandle, Model]:
        return list(self.live.items())[index % len(self.live)]

    def take(self, group: int, n: int) -> list[int]:
        ids = sorted(self.free[group])[:n]
        self.free[group] -= set(ids)
        return ids

    def give_back(self, model: Model) -> None:
        for free, blocks in zip(self.free, model.blocks, strict=True):
            free |= set(blocks.values())

    def grow_model(self, model: Model, n: int) -> type[Exception] | None:
        """Do what `append` and `reserve` do to tables, or name the refusal."""
        if n < 1 or n > MAX_APPEND or model.written + n > model.max_tokens:
            return InvalidArgument
        if model.storage is DENSE:
            return None
        short = [blocks_of(model.written + n) - model.length(g) for g in (FULL, SLIDING, CHUNKED)]
        if any(s > len(self.free[g]) for g, s in enumerate(short)):
            return BlocksExhausted
        for g, s in enumerate(short):
            first = model.length(g)
            model.blocks[g].update(enumerate(self.take(g, max(0, s)), first))
        return None

    def expect_append(self, handle: SequenceHandle, model: Model, n: int) -> tuple[FreshBlocks, ...]:
        refusal = self.grow_model(model, n)
        if refusal is not None:
            self.refused(refusal, lambda: self.pool.append(handle, n))
            return ()
        model.written += n
        expected = []
        for g in range(len(GROUPS)):
            stop = model.length(g) if model.storage is DENSE else min(model.length(g), blocks_of(model.written))
            if stop > model.told[g]:
                ids = tuple(model.blocks[g][b] for b in range(model.told[g], stop))
                expected.append(FreshBlocks(g, model.told[g], ids))
                model.told[g] = stop
        fresh = self.pool.append(handle, n)
        assert fresh == tuple(expected)
        return fresh

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(
        storage=st.sampled_from(StorageKind), max_tokens=st.integers(1, 260), keep=st.sampled_from([0, 0, 0, 5, 16, 20])
    )
    def allocate(self, storage: StorageKind, max_tokens: int, keep: int) -> None:
        seq_id = f"seq-{self.num_named}"
        self.num_named += 1

        def call() -> SequenceHandle:
            return self.pool.allocate(seq_id, storage, max_tokens, keep)

        if keep > max_tokens:
            return self.refused(InvalidArgument, call)
        if len(self.live) == MAX_SEQS:
            return self.refused(SlotsExhausted, call)
        run: list[int] = []
        if storage is DENSE:
            n, free = blocks_of(max_tokens), self.free[FULL]
            starts = [i for i in range(NUM_BLOCKS[FULL]) if all(i + k in free for k in range(n))]
            if not starts:
                return self.refused(BlocksExhausted, call)
            run = list(range(starts[0], starts[0] + n))
            free -= set(run)
        handle = call()
        assert handle.slot == min(set(range(MAX_SEQS)) - {other.slot for other in self.live})
        assert handle not in self.live and handle not in self.stale
        model = Model(seq_id, storage, max_tokens, keep, live=[keep] * len(GROUPS))
        model.blocks[FULL] = dict(enumerate(run))
        self.live[handle] = model
        return None

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5))
    def allocate_a_live_name_again(self, index: int) -> None:
        _, model = self.pick(index)
        self.refused(DuplicateSequence, lambda: self.pool.allocate(model.seq_id, PAGED, 10))

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(-1, MAX_APPEND + 2))
    def append(self, index: int, n: int) -> None:
        handle, model = self.pick(index)
        self.expect_append(handle, model, n)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(1, MAX_APPEND))
    def append_as_a_step_does(self, index: int, n: int) -> None:
        handle, model = self.pick(index)
        self.expect_append(handle, model, n)
        if model.storage is PAGED:
            for g in (SLIDING, CHUNKED):
                self.trim(handle, model, g, seen(g, model.written))

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(1, MAX_APPEND))
    def append_fails_and_is_tried_again(self, index: int, n: int) -> None:
        handle, model = self.pick(index)
        fresh = self.expect_append(handle, model, n)
        if model.written < n or not model.can_rewind(model.written - n):
            return
        told_before = model.written - n
        tables = [self.pool.table(handle, g) for g in range(len(GROUPS))]
        self.pool.rollback_append(handle, n)
        model.rewind(told_before)
        again = self.expect_append(handle, model, n)
        if again:
            assert {(f.group, f.first + i, b) for f in fresh for i, b in enumerate(f.block_ids)} <= {
                (f.group, f.first + i, b) for f in again for i, b in enumerate(f.block_ids)
            }
        assert [self.pool.table(handle, g) for g in range(len(GROUPS))] == tables

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(0, 60))
    def rollback_append(self, index: int, n: int) -> None:
        handle, model = self.pick(index)
        if n > model.written or not model.can_rewind(model.written - n):
            return self.refused(InvalidArgument, lambda: self.pool.rollback_append(handle, n))
        self.pool.rollback_append(handle, n)
        return model.rewind(model.written - n)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(0, MAX_APPEND))
    def reserve(self, index: int, n: int) -> None:
        handle, model = self.pick(index)
        refusal = self.grow_model(model, n)
        if refusal is not None:
            return self.refused(refusal, lambda: self.pool.reserve(handle, n))
        return self.pool.reserve(handle, n)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(0, 60))
    def trim_tail(self, index: int, n: int) -> None:
        handle, model = self.pick(index)
        if n > model.written or not model.can_rewind(model.written - n):
            return self.refused(InvalidArgument, lambda: self.pool.trim_tail(handle, n))
        self.pool.trim_tail(handle, n)
        model.rewind(model.written - n)
        if model.storage is PAGED:
            for g, blocks in enumerate(model.blocks):
                for b in [b for b in blocks if b >= blocks_of(model.written)]:
                    self.free[g].add(blocks.pop(b))
        return None

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), group=st.integers(-1, 4), live_start=st.integers(0, 200))
    def trim_front(self, index: int, group: int, live_start: int) -> None:
        self.trim(*self.pick(index), group, live_start)

    def trim(self, handle: SequenceHandle, model: Model, group: int, live_start: int) -> None:
        target = max(live_start, model.keep)
        if (
            group not in (SLIDING, CHUNKED)
            or model.storage is DENSE
            or not model.live[group] <= target <= max(model.keep, seen(group, model.written))
        ):
            return self.refused(InvalidArgument, lambda: self.pool.trim_front(handle, group, live_start))
        blocks = model.blocks[group]
        unseen = [b for b in blocks if b * SIZE >= model.keep and (b + 1) * SIZE <= target]
        assert set(self.pool.trim_front(handle, group, live_start)) == {blocks[b] for b in unseen}
        for b in unseen:
            self.free[group].add(blocks.pop(b))
        model.freed[group] |= set(unseen)
        model.live[group] = target
        return None

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5))
    def release(self, index: int) -> None:
        handle, model = self.pick(index)
        self.pool.release(handle)
        self.give_back(model)
        self.stale.append(handle)
        del self.live[handle]

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5))
    def reset(self, index: int) -> None:
        handle, model = self.pick(index)
        fresh_handle = self.pool.reset(handle)
        assert fresh_handle.slot == handle.slot and fresh_handle not in self.stale
        fresh_model = Model(model.seq_id, model.storage, model.max_tokens, model.keep, live=[model.keep] * len(GROUPS))
        if model.storage is DENSE:
            fresh_model.blocks = model.blocks
        else:
            self.give_back(model)
        self.stale.append(handle)
        del self.live[handle]
        self.live[fresh_handle] = fresh_model

    @precondition(lambda self: self.stale)
    @rule(index=st.integers(0, 99))
    def use_a_stale_handle(self, index: int) -> None:
        stale, pool = self.stale[index % len(self.stale)], self.pool
        calls: list[Callable[[], object]] = [
            lambda: pool.append(stale, 1),
            lambda: pool.rollback_append(stale, 1),
            lambda: pool.reserve(stale, 1),
            lambda: pool.trim_tail(stale, 0),
            lambda: pool.trim_front(stale, SLIDING, 0),
            lambda: pool.release(stale),
            lambda: pool.reset(stale),
            lambda: pool.table(stale, 0),
            lambda: pool.written(stale),
            lambda: pool.live_start(stale),
        ]
        for call in calls:
            self.refused(StaleHandle, call)

    # -- what must hold after every rule ------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_seqs == len(self.live)
        assert self.pool.num_free_blocks == tuple(map(len, self.free))
        for handle, model in self.live.items():
            assert self.pool.written(handle) == model.written
            assert self.pool.live_start(handle) == tuple(model.live)
            for g in range(len(GROUPS)):
                expected = tuple(model.blocks[g].get(b) for b in range(model.length(g)))
                assert self.pool.table(handle, g) == expected
                shown = [p for p in range(model.written) if p < model.keep or p >= model.live[g]]
                assert self.pool.sequence(handle).visible(g) == len(shown)

    @invariant()
    def sets_aside_what_live_sequences_may_claim(self) -> None:
        claims = [0] * len(GROUPS)
        for model in self.live.values():
            needed = self.pool.blocks_needed(model.max_tokens, model.storage, model.keep)
            for g in range(len(GROUPS)):
                claims[g] += max(0, needed[g] - len(model.blocks[g]))
        assert self.pool.available_blocks() == tuple(len(f) - c for f, c in zip(self.free, claims, strict=True))


TestCachePool = CachePoolMachine.TestCase
TestCachePool.settings = settings(derandomize=True, deadline=None, max_examples=100, stateful_step_count=40)


@pytest.mark.nightly
@pytest.mark.skipif(os.environ.get("OCTAVO_NIGHTLY") != "1", reason="long; set OCTAVO_NIGHTLY=1")
class TestCachePoolAtLength(CachePoolMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(deadline=None, max_examples=3000, stateful_step_count=120)
