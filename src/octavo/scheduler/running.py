"""A request in a slot: what it began from, its rows, and where its chunks end so that others can begin there. Decides
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import TOKEN_BYTES, PrefixDomain, PrefixHit, Snapshot, TokenRun
from octavo.cache.sequence import SequenceHandle, SequenceState
from octavo.request import RequestState
from octavo.scheduler.queue import WaitingRequest
from octavo.step_batch import StepRow, StorageKind

_WORTH_A_SNAPSHOT = 64  # tokens; to stop at a block's end for it costs about what a decode step does


@dataclass(slots=True)
class RunningRequest:
    """`began_at` tokens came from elsewhere, with `snapshot` of what storage keeps of them outside of blocks, if any.

    At `capture_at` computed tokens a snapshot is to be taken (0: nowhere). `spare`: per group, 1 where it may outgrow
    what it is promised. `level` is its effective priority since it left the line, `last_tick` that of its last step.
    """

    waiting: WaitingRequest
    sequence: SequenceState  # to read
    began_at: int
    snapshot: Snapshot | None
    capture_at: int
    spare: tuple[int, ...]
    level: int = 0
    last_tick: int = 0

    @classmethod
    def of(
        cls, waiting: WaitingRequest, sequence: SequenceState, hit: PrefixHit | None, block_size: int, *, per_slot: bool
    ) -> RunningRequest:
        """`hit` is None for one that gives nothing. `per_slot`: storage keeps some of it outside of blocks.

        Then it is captured where the last whole block before its last token ends, if that is far from where it began.
        """
        if hit is None:
            return cls(waiting, sequence, waiting.state.num_imported_tokens, None, 0, waiting.spare)
        last = (waiting.state.num_tokens - 1) // block_size * block_size
        worth = per_slot and last - hit.num_tokens >= _WORTH_A_SNAPSHOT
        return cls(waiting, sequence, hit.num_tokens, hit.snapshot, last if worth else 0, waiting.spare)

    @property
    def handle(self) -> SequenceHandle:
        return self.sequence.handle

    @property
    def state(self) -> RequestState:
        return self.waiting.state

    @property
    def num_remaining(self) -> int:
        return self.state.num_tokens - self.state.num_computed_tokens

    @property
    def grows(self) -> bool:
        """True if it takes blocks as it comes to need them, and so may have to give all of them back."""
        return self.waiting.storage is StorageKind.PAGED and not self.waiting.reserve

    def growth(self, pool: CachePool, tokens: int) -> tuple[int, ...]:
        """Available blocks that it takes up to have `tokens` tokens, per group; () for none."""
        if tokens <= self.sequence.promised or not self.grows:
            return ()
        growth = pool.growth(self.handle, tokens)
        return growth if any(growth) else ()

    def row(self, pool: CachePool, start: int, token_ids: tuple[int, ...], *, sample: bool) -> StepRow:
        """Count tokens as written from `start` on, and lay them out. See first that there are blocks to grow by."""
        sequence, storage = self.sequence, self.waiting.storage
        handle = sequence.handle
        tokens = start + len(token_ids) if sample else self.state.num_tokens
        if tokens > sequence.promised and self.grows:
            pool.promise(handle, tokens)
            most, keep = self.state.max_total_tokens, self.state.keep
            self.spare = pool.may_outgrow(storage, tokens, most, keep)
        live_start = sequence.live_start
        fresh = pool.append(handle, len(token_ids))
        slot, generation = handle
        return StepRow(
            slot, generation, storage, token_ids, start, fresh, live_start, sample, sequence.keep, sequence.rope_offset
        )

    def trim_windows(self, pool: CachePool, written: int) -> None:
        """Give up what no window sees of the first `written` tokens."""
        if self.waiting.storage is StorageKind.PAGED:
            for index, group in enumerate(pool.groups):
                if group.spec.window is not None:
                    pool.trim_front(self.handle, index, group.spec.first_visible(written))

    @property
    def to_restore(self) -> Snapshot | None:
        """What the next step begins from, if from a snapshot."""
        return self.snapshot if self.state.num_computed_tokens == self.began_at else None

    @property
    def captured_prefix(self) -> tuple[PrefixDomain, TokenRun]:
        """Whose snapshot is taken at `capture_at`."""
        domain, tokens = self.waiting.domain, self.waiting.tokens
        assert domain is not None, "only what gives to a domain is captured"
        assert tokens is not None, "only what gives to a domain is captured"
        return domain, TokenRun(tokens[: self.capture_at * TOKEN_BYTES])

    def cut(self, num_tokens: int) -> int:
        """As many of `num_tokens` as may be computed in one step: none past where a snapshot is to be taken."""
        left = self.capture_at - self.state.num_computed_tokens
        return min(num_tokens, left) if left > 0 else num_tokens
