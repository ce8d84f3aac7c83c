"""Who computes how many tokens in the next step, and who is admitted: pure functions of a view.

Owns the decision, no request, queue or block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunningView:
    """A running request: `num_remaining` (at least 1) tokens until it samples again; 1 is a decode row."""

    request_id: str
    num_remaining: int


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A waiting request and the most blocks it will hold per group; `contiguous` if it takes them as one run now."""

    request_id: str
    num_remaining: int
    blocks: tuple[int, ...]
    contiguous: bool


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """All that a decision depends on. `running` and `waiting` are in arrival order.

    `available_blocks`: per group, free blocks less what the running may still claim. `longest_runs`: per group, the
    longest contiguous free run; it matters only while a contiguous request waits. Budgets are tokens.
    """

    running: tuple[RunningView, ...]
    waiting: tuple[WaitingView, ...]
    free_slots: int
    available_blocks: tuple[int, ...]
    longest_runs: tuple[int, ...]
    max_batch_tokens: int
    prefill_chunk: int


@dataclass(frozen=True, slots=True)
class Share:
    """`num_tokens` of one request in the step."""

    request_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    """`shares` in the order their tokens are packed; `admitted` in arrival order, each with a share."""

    shares: tuple[Share, ...]
    admitted: tuple[str, ...]


def decide_tick(view: SchedulerView) -> Decision:
    """Share out one step's token budget.

    Decode rows come first. Prefill chunks of running requests, then of newly admitted ones, fill the rest in arrival
    order. Admission is strictly first come first served: a request enters only if its whole maximum length fits
    beside what the running may still claim, and nobody overtakes one that does not. It also needs a token of the
    budget that the running leave over; so never more run than the budget has tokens, every decode row is in every
    step, and a prefill never waits for ever.
    """
    budget = view.max_batch_tokens
    shares: list[Share] = []

    def share(request_id: str, num_tokens: int) -> None:
        nonlocal budget
        if taken := min(num_tokens, budget):
            shares.append(Share(request_id, taken))
            budget -= taken

    for running in view.running:
        if running.num_remaining == 1:
            share(running.request_id, 1)
    for running in view.running:
        if running.num_remaining > 1:
            share(running.request_id, min(running.num_remaining, view.prefill_chunk))

    admitted = []
    for waiting in _admissible(view):
        if not budget:
            break
        share(waiting.request_id, min(waiting.num_remaining, view.prefill_chunk))
        admitted.append(waiting.request_id)
    return Decision(tuple(shares), tuple(admitted))


def _admissible(view: SchedulerView) -> Sequence[WaitingView]:
    """The longest prefix of the waiting line that slots and blocks have room for."""
    room, runs = view.available_blocks, view.longest_runs
    fitting: list[WaitingView] = []
    for waiting in view.waiting[: view.free_slots]:
        if not _fits(waiting.blocks, room) or (waiting.contiguous and not _fits(waiting.blocks, runs)):
            break
        room = _less(room, waiting.blocks)
        if waiting.contiguous:
            # Wherever the run is cut from, a run at least this long is left.
            runs = _less(runs, waiting.blocks)
        fitting.append(waiting)
    return fitting


def _fits(needed: tuple[int, ...], room: tuple[int, ...]) -> bool:
    return all(n <= r for n, r in zip(needed, room, strict=True))


def _less(room: tuple[int, ...], taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(r - t for r, t in zip(room, taken, strict=True))
