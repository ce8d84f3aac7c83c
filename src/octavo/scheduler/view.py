"""What a scheduling decision depends on, and the decision: plain frozen data. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

Blocks = tuple[int, ...]  # per group


@dataclass(frozen=True, slots=True)
class RunningView:
    """A running request: `num_remaining` (at least 1) tokens until it samples again; 1 is a decode row.

    `level` is the effective priority with which it was admitted, `arrival` its place among all requests that ever
    came. `growth` is what it needs for these tokens beyond the blocks it was promised; () for nothing. `idle_ticks`
    counts the steps since the last that it was in. `is_answering` if its prompt is computed.
    """

    request_id: str
    num_remaining: int
    num_computed: int = 0
    level: int = 0
    arrival: int = 0
    growth: Blocks = ()
    preemptable: bool = False
    idle_ticks: int = 0
    is_answering: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the one that is to be served first to the front."""
        return self.level, self.arrival


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A waiting request, the blocks it is to be promised at admission, and those to keep free for it to grow into.

    `contiguous` if it takes its blocks as one run. It is held back while one of those it is `behind` runs: they
    compute a beginning which it can then share.
    """

    request_id: str
    num_remaining: int
    blocks: Blocks
    contiguous: bool = False
    spare: Blocks = ()
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """All that a decision depends on. `running` in the order of admission, `waiting` in that of the line.

    `available_blocks`: per group, free blocks less what the running are promised. `longest_runs`: per group, the
    longest contiguous free run; it matters only while a contiguous request waits. `watermark`: blocks to keep free for
    the growth of the running. Budgets are tokens, `prefill_grant_interval` ticks. `squeezed_ticks` is the fairness
    counter: what the last decision returned. `admits` is False where nobody may be admitted.
    """

    running: tuple[RunningView, ...]
    waiting: tuple[WaitingView, ...]
    free_slots: int
    available_blocks: Blocks
    longest_runs: Blocks
    max_batch_tokens: int
    prefill_chunk: int
    prefill_grant_interval: int = 4
    watermark: Blocks = ()
    squeezed_ticks: int = 0
    admits: bool = True


@dataclass(frozen=True, slots=True)
class Share:
    """`num_tokens` of one request in the step."""

    request_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    """`shares` in the order their tokens are packed; `admitted` in the order of the line, each with a share.

    If `preempted` names a running request there is nothing else: take its slot and blocks, and ask again.
    `squeezed_ticks` goes into the next view.
    """

    shares: tuple[Share, ...] = ()
    admitted: tuple[str, ...] = ()
    preempted: str | None = None
    squeezed_ticks: int = 0


def fits(needed: Blocks, room: Blocks) -> bool:
    """An empty tuple needs nothing."""
    return not needed or all(n <= r for n, r in zip(needed, room, strict=True))


def less(room: Blocks, taken: Blocks) -> Blocks:
    return tuple([r - t for r, t in zip(room, taken, strict=True)]) if taken else room


def more(blocks: Blocks, added: Blocks) -> Blocks:
    """Either may be empty."""
    return tuple([b + a for b, a in zip(blocks, added, strict=True)]) if blocks and added else blocks or added
