"""Who computes how many tokens in the next step, who is admitted and who must give way: pure functions of a view.

Owns the decision, no request, queue or block.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.scheduler.view import Blocks, Decision, RunningView, SchedulerView, Share, WaitingView, fits, less, more

AGEING_TICKS = 256
_PREFILL_QUARTER = 4  # a prefill that is granted tokens gets up to this part of the step


def level_after(priority: int, waited_ticks: int, ageing_ticks: int = AGEING_TICKS) -> int:
    """Effective priority, lower being earlier: a request rises one level for each `ageing_ticks` that it waited."""
    return priority - waited_ticks // ageing_ticks


def decide_tick(view: SchedulerView) -> Decision:
    """Share out one step's token budget, admit, or say who has to give up its blocks first.

    Growth: every running request gets the blocks that its next tokens need, first the one of the lowest level that
    came first. If blocks are short, somebody is preempted (`_victim`); if nobody can be, the request sits this step
    out.

    Tokens: decode rows come first, if there are more than the budget those that were left out longest. Whoever has
    several tokens of its answer to compute, then prefill chunks of running requests in the order of their admission,
    then those of newly admitted ones fill the rest. If decode rows leave less than a quarter of the budget and prefill
    wants more, then in every `prefill_grant_interval`-th such step prefill gets a quarter before them.

    Admission is strictly in the order of the line, but that those who would compute again what somebody computes now
    are passed over: a request enters only if its blocks are there, beside the watermark while others run, and a token
    of the budget. A deferral takes nothing from the running.
    """
    room, stalled = view.available_blocks, set()
    for running in sorted((r for r in view.running if r.growth), key=lambda r: r.rank):
        if fits(running.growth, room):
            room = less(room, running.growth)
        elif (victim := _victim(view.running)) is not None:
            return Decision(preempted=victim.request_id, squeezed_ticks=view.squeezed_ticks)
        else:
            stalled.add(running.request_id)

    ready = [r for r in view.running if r.request_id not in stalled]
    decodes = [r for r in ready if r.num_remaining == 1]
    prefills = sorted((r for r in ready if r.num_remaining > 1), key=lambda r: not r.is_answering)
    entering = _admissible(view, room)

    remaining = [r.num_remaining for r in prefills] + [w.num_remaining for w in entering]
    wanted = sum(min(n, view.prefill_chunk) for n in remaining)
    granted, squeezed_ticks = _grant(view, len(decodes), wanted)
    budget = view.max_batch_tokens - granted
    if len(decodes) > budget:
        chosen = set(sorted(range(len(decodes)), key=lambda i: -decodes[i].idle_ticks)[:budget])
        decodes = [row for i, row in enumerate(decodes) if i in chosen]
    shares = [Share(row.request_id, 1) for row in decodes]
    budget += granted - len(decodes)
    for prefill in prefills:
        if taken := min(prefill.num_remaining, view.prefill_chunk, budget):
            shares.append(Share(prefill.request_id, taken))
            budget -= taken
    admitted = []
    for waiting in entering:
        if not budget:
            break
        taken = min(waiting.num_remaining, view.prefill_chunk, budget)
        shares.append(Share(waiting.request_id, taken))
        admitted.append(waiting.request_id)
        budget -= taken
    return Decision(tuple(shares), tuple(admitted), squeezed_ticks=squeezed_ticks)


def _grant(view: SchedulerView, num_decodes: int, wanted: int) -> tuple[int, int]:
    """Tokens that prefill gets before the decode rows, and the fairness counter."""
    budget = view.max_batch_tokens
    quantum = min(wanted, max(1, budget // _PREFILL_QUARTER))
    if budget - num_decodes >= quantum:
        return 0, 0
    # Where the quantum is the whole step, decode rows need one in between.
    interval = max(view.prefill_grant_interval, 2 if quantum == budget else 1)
    squeezed_ticks = view.squeezed_ticks + 1
    return (quantum, 0) if squeezed_ticks >= interval else (0, squeezed_ticks)


def _victim(running: Sequence[RunningView]) -> RunningView | None:
    """The lowest priority, of these the fewest computed tokens, of these the newest; never whoever ranks first.

    So that one is never interrupted, whatever comes and goes beside it, and ends.
    """
    candidates = [r for r in running if r.preemptable]
    if len(candidates) < 2:
        return None
    first = min(candidates, key=lambda r: r.rank)
    return max((r for r in candidates if r is not first), key=lambda r: (r.level, -r.num_computed, r.arrival))


def _admissible(view: SchedulerView, room: Blocks) -> list[WaitingView]:
    """Those of the line that slots and blocks have room for."""
    runs, watermark = view.longest_runs, view.watermark
    active = {r.request_id for r in view.running}
    fitting: list[WaitingView] = []
    for waiting in view.waiting if view.admits else ():
        if len(fitting) == view.free_slots:
            break
        if not active.isdisjoint(waiting.behind):
            continue
        watermark = more(watermark, waiting.spare)
        beside_others = more(waiting.blocks, watermark) if active else waiting.blocks
        if not fits(beside_others, room) or (waiting.contiguous and not fits(waiting.blocks, runs)):
            break
        room = less(room, waiting.blocks)
        if waiting.contiguous:
            # Wherever the run is cut from, a run at least this long is left.
            runs = less(runs, waiting.blocks)
        fitting.append(waiting)
        active.add(waiting.request_id)
    return fitting
