"""Sequences that share blocks, against rows that remember what they were computed from, and hits found by trying."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from prefix_simulation import (
    SIZE,
    RingCopy,
    Script,
    Storage,
    cached_prefixes,
    keeps_rings,
    longest_hit,
    make_groups,
    one_byte,
    same_for_all,
    takes_the_short_way,
    tokens_of,
)

from octavo.cache.cache_pool import CachePool
from octavo.cache.parked import ParkedSequence
from octavo.cache.prefix_types import PrefixDomain, PrefixOptions, blake2b_128, encode_tokens
from octavo.cache.refusals import BlocksExhausted, DuplicateSequence, InvalidArgument, SlotsExhausted, StaleHandle
from octavo.cache.sequence import SequenceHandle
from octavo.step_batch import StorageKind

DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED
MAX_SEQS, MAX_APPEND = 4, 48


PROMPTS = st.builds(tokens_of, st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, SIZE - 1))


class PrefixMachine(RuleBasedStateMachine):
    happened: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.begin_with(("full", "sliding"), 0, None, None, blake2b_128)

    @initialize(
        kinds=st.sampled_from([("full",), ("full", "sliding"), ("sliding", "full"), ("full", "chunked"), ("sliding",)]),
        spare=st.integers(0, 4),
        limit=st.sampled_from([None, None, 3, 9]),
        snapshot_limit=st.sampled_from([None, 1, 3]),
        digest=st.sampled_from([blake2b_128, one_byte, same_for_all]),
    )
    def begin_with(
        self,
        kinds: tuple[str, ...],
        spare: int,
        limit: int | None,
        snapshot_limit: int | None,
        digest: Callable[[bytes], bytes],
    ) -> None:
        num_blocks = [10 + spare for _ in kinds]
        options = PrefixOptions(limit_bytes=limit, snapshot_limit_bytes=snapshot_limit, digest=digest)
        self.pool = CachePool(make_groups(kinds), SIZE, num_blocks, MAX_SEQS, MAX_APPEND, options)
        self.storage = Storage(self.pool)
        self.live: dict[SequenceHandle, Script] = {}
        self.parked: list[tuple[ParkedSequence, Script]] = []
        self.dead: list[ParkedSequence] = []
        self.preempted: list[tuple[list[int], str, int]] = []
        self.num_named = 0

    # -- helpers ------------------------------------------------------------------------------------------------

    def name(self) -> str:
        self.num_named += 1
        return f"seq-{self.num_named}"

    def pick(self, index: int) -> tuple[SequenceHandle, Script]:
        return list(self.live.items())[index % len(self.live)]

    def refused(self, kind: type[Exception], call: Callable[[], object]) -> None:
        before = pickle.dumps(self.pool)
        with pytest.raises(kind):
            call()
        assert pickle.dumps(self.pool) == before

    def copy_of(self, script: Script) -> Script:
        empty: list[dict[int, int]] = [{} for _ in self.pool.groups]
        return Script(script.salt, list(script.tokens), rope_offset=script.rope_offset, table=empty)

    def start(self, tokens: list[int], salt: str, room: int, keep: int, storage: StorageKind) -> None:
        pool, domain = self.pool, PrefixDomain(salt=salt)
        hit = pool.prefix.match(domain, encode_tokens(tokens), storage, keep)
        with_snapshot: set[tuple[int, ...]] = set()
        cached = cached_prefixes(pool, salt, with_snapshot)
        assert hit.num_tokens == longest_hit(pool, cached, tokens, keep, storage, with_snapshot)
        assert hit.num_tokens < len(tokens) and hit.num_tokens % SIZE == 0
        max_tokens = len(tokens) + room
        if pool.num_seqs == MAX_SEQS:
            return self.refused(SlotsExhausted, lambda: pool.allocate("new", storage, max_tokens, keep, hit))
        if storage is DENSE:
            found, (hit, costs) = hit, pool.begin_dense(hit, max_tokens)
            assert hit in (found, found.without_tokens())
            assert hit.num_tokens == 0 or pool.can_allocate(storage, max_tokens, keep, hit)
            assert hit == found or not pool.can_allocate(storage, max_tokens, keep, found)
        if not pool.can_allocate(storage, max_tokens, keep, hit):
            return None
        room = pool.available_blocks()
        handle = pool.allocate(self.name(), storage, max_tokens, keep, hit)
        empty: list[dict[int, int]] = [{} for _ in pool.groups]
        script = self.live[handle] = Script(salt, list(tokens), table=empty)
        self.happened["hit"] += hit.num_tokens > 0
        if storage is DENSE:
            taken = tuple([before - after for before, after in zip(room, pool.available_blocks(), strict=True)])
            assert taken == costs, "another number of blocks was taken than was said"
            copied = len(pool.copies(handle))
            self.happened["dense hit in its own blocks"] += hit.num_tokens > 0 == copied
            self.happened["dense hit in copies"] += copied > 0
        if hit.num_tokens and keeps_rings(pool, storage):
            assert hit.snapshot == RingCopy(script.digest(hit.num_tokens - 1)), "the ring of other tokens"
            self.happened["ring restored"] += 1
        return None

    def advance_by(self, handle: SequenceHandle, script: Script, n: int, fails: bool = False) -> None:
        pool, state = self.pool, self.pool.sequence(handle)
        n = min(n, state.max_tokens - state.rope_position)
        if n < 1:
            return
        script.tokens += [7] * (state.written + n - len(script.tokens))
        start, evictions = state.written, pool.prefix.counters.evictions
        fresh = pool.append(handle, n)
        if fails:
            placed = [pool.table(handle, g) for g in range(len(pool.groups))]
            if n % 2:  # it failed after storage had begun
                self.storage.run(handle, script, start, start + n, fresh)
            pool.rollback_append(handle, n)
            fresh = pool.append(handle, n)
            assert placed == [pool.table(handle, g) for g in range(len(pool.groups))]
        copies = self.storage.run(handle, script, start, start + n, fresh)
        self.happened["copy on write"] += len(copies)
        self.happened["eviction"] += pool.prefix.counters.evictions > evictions
        self.give(handle, script)
        if state.storage is PAGED:
            for g, group in enumerate(pool.groups):
                if group.spec.window is not None:
                    pool.trim_front(handle, g, group.spec.first_visible(state.written))

    def give(self, handle: SequenceHandle, script: Script) -> None:
        state = self.pool.sequence(handle)
        before = state.cursor.stop if state.cursor is not None else 0
        self.pool.donate(handle, lambda start, stop: script.tokens[start:stop], state.written)
        if keeps_rings(self.pool, state.storage) and state.domain is not None and state.written % SIZE == 0:
            ring = RingCopy(script.digest(state.written - 1))
            self.pool.prefix.attach_snapshot(state.domain, encode_tokens(script.tokens[: state.written]), ring)
        if state.cursor is not None and state.cursor.stop > before and self.pool.prefix.limit_bytes is None:
            held = cached_prefixes(self.pool, script.salt)
            whole = state.written // SIZE * SIZE
            if self.pool.groups[0].spec.kind == "full" and whole:
                assert tuple(script.tokens[:whole]) in held, "whole blocks were given and are not there"

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(
        tokens=PROMPTS,
        salt=st.sampled_from(["", "", "", "b"]),
        room=st.integers(1, 60),
        keep=st.sampled_from([0, 0, 0, 16, 5]),
        dense=st.integers(0, 2),
    )
    def admit(self, tokens: list[int], salt: str, room: int, keep: int, dense: int) -> None:
        storage = DENSE if dense > 1 and not keep else PAGED
        self.start(tokens, salt, room, min(keep, len(tokens)), storage)

    @rule(
        prompts=st.lists(PROMPTS, min_size=1, max_size=3),
        room=st.integers(1, 60),
        ends=st.booleans(),
        storage=st.sampled_from([PAGED, PAGED, DENSE]),
    )
    def serve(self, prompts: list[list[int]], room: int, ends: bool, storage: StorageKind) -> None:
        """Several prompts one after the other, each to its end."""
        for tokens in prompts:
            known = set(self.live)
            self.start(tokens, "", room, 0, storage)
            for handle in set(self.live) - known:
                for _ in range(4):
                    self.advance_by(handle, self.live[handle], MAX_APPEND)
                if ends:
                    self.end(list(self.live).index(handle), aborts=False)

    @rule(
        choices=st.lists(st.integers(0, 1), min_size=4, max_size=4),
        room=st.integers(1, 12),
        ends=st.booleans(),
        storage=st.sampled_from([PAGED, DENSE, DENSE]),
    )
    def go_on_from_a_prompt(self, choices: list[int], room: int, ends: bool, storage: StorageKind) -> None:
        """A prompt twice, the second time when the first has ended or is still there."""
        for tokens in (tokens_of(choices, 3), tokens_of([*choices, 1], room)):
            known = set(self.live)
            self.start(tokens, "", room, 0, storage)
            for handle in set(self.live) - known:
                self.advance_by(handle, self.live[handle], MAX_APPEND)
                self.advance_by(handle, self.live[handle], 4)
                if ends:
                    self.end(list(self.live).index(handle), aborts=False)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(1, 20))
    def fork_in_the_middle_of_a_block(self, index: int, n: int) -> None:
        handle, script = self.pick(index)
        self.advance_by(handle, script, n)
        self.fork(index)
        self.fork(index + 1)
        self.advance_all()

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(1, MAX_APPEND), fails=st.booleans())
    def advance(self, index: int, n: int, fails: bool) -> None:
        self.happened["short way"] += sum([takes_the_short_way(self.pool, handle) for handle in self.live])
        self.advance_by(*self.pick(index), n, fails)

    @precondition(lambda self: self.live)
    @rule()
    def advance_all(self) -> None:
        for handle, script in self.live.items():
            self.advance_by(handle, script, MAX_APPEND)

    @precondition(lambda self: self.preempted)
    @rule()
    def resume(self) -> None:
        tokens, salt, room = self.preempted.pop()
        self.start(tokens, salt, room, 0, PAGED)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), aborts=st.booleans())
    def end(self, index: int, aborts: bool) -> None:
        handle, script = self.pick(index)
        state = self.pool.sequence(handle)
        if not aborts and not state.rope_offset and state.written:
            room = max(1, state.max_tokens - state.written)
            self.preempted.append((script.tokens[: state.written + 1], script.salt, room))
            self.happened["preemption"] += 1
        self.pool.release(handle)
        del self.live[handle]

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5))
    def fork(self, index: int) -> None:
        handle, script = self.pick(index)
        state = self.pool.sequence(handle)
        if state.unmade_copies or (keeps_rings(self.pool, state.storage)):
            self.refused(InvalidArgument, lambda: self.pool.fork(handle, "new"))
        elif self.pool.num_seqs == MAX_SEQS:
            self.refused(SlotsExhausted, lambda: self.pool.fork(handle, "new"))
        elif state.storage is PAGED and self.pool.can_fork(handle) and not script.unrotated:
            self.refused(DuplicateSequence, lambda: self.pool.fork(handle, state.seq_id))
            self.live[self.pool.fork(handle, self.name())] = self.copy_of(script)
            self.happened["fork"] += 1
            self.happened["short way"] += takes_the_short_way(self.pool, handle)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5))
    def detach(self, index: int) -> None:
        handle, script = self.pick(index)
        state = self.pool.sequence(handle)
        if state.unmade_copies or (keeps_rings(self.pool, state.storage)):
            return self.refused(InvalidArgument, lambda: self.pool.detach(handle))
        if script.unrotated or len(self.parked) == 2:
            return None
        self.parked.append((self.pool.detach(handle), script))
        del self.live[handle]
        return None

    @precondition(lambda self: self.parked)
    @rule(index=st.integers(0, 5), times=st.integers(2, 4))
    def adopt(self, index: int, times: int) -> None:
        parked, script = self.parked[index % len(self.parked)]
        for _ in range(times):
            if self.pool.num_seqs == MAX_SEQS:
                self.refused(SlotsExhausted, lambda: self.pool.adopt(parked, "new"))
            elif self.pool.can_adopt(parked):
                handle = self.pool.adopt(parked, self.name())
                self.live[handle] = self.copy_of(script)
                self.happened["adoption"] += 1
                self.advance_by(handle, self.live[handle], 3)

    @precondition(lambda self: self.parked)
    @rule(index=st.integers(0, 5))
    def unpark(self, index: int) -> None:
        parked, script = self.parked[index % len(self.parked)]
        if self.pool.num_seqs == MAX_SEQS:
            self.refused(SlotsExhausted, lambda: self.pool.unpark(parked, "new"))
        elif self.pool.can_adopt(parked):
            self.live[self.pool.unpark(parked, self.name())] = self.copy_of(script)
            self.parked.remove((parked, script))
            self.dead.append(parked)

    @precondition(lambda self: self.parked)
    @rule(index=st.integers(0, 5))
    def drop(self, index: int) -> None:
        parked, _ = self.parked.pop(index % len(self.parked))
        self.pool.drop(parked)
        self.dead.append(parked)

    @precondition(lambda self: self.dead)
    @rule(index=st.integers(0, 50))
    def use_what_was_dropped(self, index: int) -> None:
        parked = self.dead[index % len(self.dead)]
        for call in (self.pool.drop, self.pool.can_adopt):
            self.refused(StaleHandle, lambda call=call: call(parked))  # type: ignore[misc]
        self.refused(StaleHandle, lambda: self.pool.adopt(parked, "new"))
        self.refused(StaleHandle, lambda: self.pool.unpark(parked, "new"))

    @precondition(lambda self: len(self.parked) < 2)
    @rule(tokens=PROMPTS)
    def pin(self, tokens: list[int]) -> None:
        hit = self.pool.prefix.match(PrefixDomain(), encode_tokens(tokens))
        if not hit.num_tokens:
            self.refused(InvalidArgument, lambda: self.pool.pin(hit))
            return
        before = pickle.dumps(self.pool)
        try:
            parked = self.pool.pin(hit)
        except BlocksExhausted:
            assert pickle.dumps(self.pool) == before
            return
        empty: list[dict[int, int]] = [{} for _ in self.pool.groups]
        self.parked.append((parked, Script("", tokens[: hit.num_tokens], table=empty)))

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), n=st.integers(1, 40))
    def trim_tail(self, index: int, n: int) -> None:
        handle, script = self.pick(index)
        state = self.pool.sequence(handle)
        written = state.written - n
        if written < 0 or not all(
            state.can_rewind(g, group, written, SIZE) for g, group in enumerate(self.pool.groups)
        ):
            return self.refused(InvalidArgument, lambda: self.pool.trim_tail(handle, n))
        if self.shares_run(handle, written // SIZE):
            return self.refused(InvalidArgument, lambda: self.pool.trim_tail(handle, n))
        if script.unrotated or state.unmade_copies or min(self.pool.available_blocks()) < 4:
            return None  # whoever gives shared blocks back and will want others needs room for them
        self.pool.trim_tail(handle, n)
        script.cut(written)
        return None

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5), blocks=st.integers(0, 3), odd=st.sampled_from([0, 0, 0, 1]))
    def shift(self, index: int, blocks: int, odd: int) -> None:
        handle, script = self.pick(index)
        state, n = self.pool.sequence(handle), blocks * SIZE + odd
        start = state.keep + state.rope_offset + n
        if state.storage is DENSE or odd or state.keep % SIZE or not blocks or start > state.written:
            return self.refused(InvalidArgument, lambda: self.pool.shift(handle, n))
        if script.unrotated or state.unmade_copies:
            return None
        before = pickle.dumps(self.pool)
        try:
            self.pool.shift(handle, n)
        except BlocksExhausted:
            assert pickle.dumps(self.pool) == before
            return None
        script.rope_offset += n
        script.unrotated = True
        self.happened["shift"] += 1
        return None

    def shares_run(self, handle: SequenceHandle, first: int) -> bool:
        """Whether others hold what a dense sequence has from block `first` on."""
        tables = [self.pool.table(handle, g)[first:] for g in range(len(self.pool.groups))]
        shared = any(self.pool.pools[g].is_shared(i) for g, ids in enumerate(tables) for i in ids if i is not None)
        return self.pool.sequence(handle).storage is DENSE and shared

    @rule(limit=st.sampled_from([None, None, 0, 4, 12]))
    def change_limit(self, limit: int | None) -> None:
        self.pool.prefix.set_limit(limit)
        if limit is not None and not self.live and not self.parked:
            assert self.pool.prefix.num_bytes <= limit

    @rule(tokens=PROMPTS, group=st.integers(0, 1))
    def a_hit_goes_stale_when_its_blocks_are_evicted(self, tokens: list[int], group: int) -> None:
        pool, group = self.pool, group % len(self.pool.groups)
        hit = pool.prefix.match(PrefixDomain(), encode_tokens(tokens))
        one = pool.pools[group]
        pool.prefix.evict(group, one.num_free + min(2, one.num_cached))
        if pool.num_seqs < MAX_SEQS and not pool.prefix.holds(hit):
            self.refused(InvalidArgument, lambda: pool.allocate("new", PAGED, len(tokens), 0, hit))

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 5))
    def reset(self, index: int) -> None:
        handle, script = self.pick(index)
        state = self.pool.sequence(handle)
        needed = self.pool.blocks_needed(state.max_tokens, PAGED, state.keep)
        room = self.pool.available_blocks()
        if state.storage is PAGED and not all(n < r for n, r in zip(needed, room, strict=True)):
            return None  # as above
        if self.shares_run(handle, 0):
            return self.refused(InvalidArgument, lambda: self.pool.reset(handle))
        fresh = self.pool.reset(handle)
        del self.live[handle]
        self.live[fresh] = self.copy_of(script)
        self.live[fresh].rope_offset = 0
        return None

    # -- what must hold after every rule ------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        PrefixMachine.happened["step"] += 1
        self.pool.check_integrity()
        assert min(self.pool.available_blocks()) >= 0, "more is promised than there is"
        paged = [state for state in self.pool.sequences() if state.storage is PAGED]
        for g, pool in enumerate(self.pool.pools):
            claims = [self.pool._claim(state, g, state.promised_blocks[g]) for state in paged]
            assert self.pool._claims(paged, g) == sum(claims), "the short sum is another"
            assert pool.num_free + pool.num_live + pool.num_cached == pool.num_blocks
        if not self.live:
            self.pool.check_idle()

    def teardown(self) -> None:
        """Everybody ends, and what is left is free or cached, and all of that can be evicted."""
        for handle in self.live:
            self.pool.release(handle)
        for parked, _ in self.parked:
            self.pool.drop(parked)
        self.pool.check_integrity()
        for g, pool in enumerate(self.pool.pools):
            assert pool.num_live == 0
            self.pool.prefix.evict(g, pool.num_blocks)
            assert pool.num_free == pool.num_blocks
        self.pool.check_integrity()


def test_no_interleaving_shows_a_sequence_another_row_or_promises_what_there_is_not() -> None:
    PrefixMachine.happened.clear()
    run_state_machine_as_test(
        PrefixMachine,
        settings=settings(derandomize=True, deadline=None, max_examples=400, stateful_step_count=50),
    )
    happened = PrefixMachine.happened
    assert happened["step"] >= 10_000, happened
    for event in ("eviction", "copy on write", "preemption", "adoption", "hit", "fork"):
        assert happened[event] >= 40, happened
    for event in ("dense hit in its own blocks", "dense hit in copies", "ring restored", "short way"):
        assert happened[event] >= 15, happened


@pytest.mark.nightly
@pytest.mark.skipif(os.environ.get("OCTAVO_NIGHTLY") != "1", reason="long; set OCTAVO_NIGHTLY=1")
class TestPrefixMachineAtLength(PrefixMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(deadline=None, max_examples=3000, stateful_step_count=120)
