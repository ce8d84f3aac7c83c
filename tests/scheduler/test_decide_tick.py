"""`decide_tick` on views, alone: budget, order, admission."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.scheduler.policy import Decision, RunningView, SchedulerView, Share, WaitingView, decide_tick


def view(
    running: list[int],
    waiting: list[tuple[int, int]] | None = None,
    *,
    budget: int = 16,
    chunk: int = 8,
    slots: int = 4,
    blocks: int = 10,
    longest_run: int = 10,
    contiguous: bool = False,
) -> SchedulerView:
    """Running requests r0, r1, … by tokens remaining; waiting ones w0, w1, … by (tokens remaining, blocks)."""
    return SchedulerView(
        running=tuple(RunningView(f"r{i}", n) for i, n in enumerate(running)),
        waiting=tuple(WaitingView(f"w{i}", n, (b,), contiguous) for i, (n, b) in enumerate(waiting or [])),
        free_slots=slots,
        available_blocks=(blocks,),
        longest_runs=(longest_run,),
        max_batch_tokens=budget,
        prefill_chunk=chunk,
    )


def test_decode_rows_come_before_the_prefill_that_arrived_earlier() -> None:
    decision = decide_tick(view([30, 1, 1], budget=5))
    assert decision == Decision((Share("r1", 1), Share("r2", 1), Share("r0", 3)), ())


def test_several_prefills_share_a_step_in_arrival_order() -> None:
    decision = decide_tick(view([30, 5, 30], budget=16))
    assert decision.shares == (Share("r0", 8), Share("r1", 5), Share("r2", 3))


def test_an_admitted_request_computes_its_first_chunk_in_the_same_step() -> None:
    assert decide_tick(view([1], [(30, 2)])) == Decision((Share("r0", 1), Share("w0", 8)), ("w0",))


def test_nobody_is_admitted_into_a_step_without_budget_left() -> None:
    assert decide_tick(view([30, 30], [(3, 1)], budget=16)).admitted == ()


def test_a_small_request_never_overtakes_a_large_one_that_waits_for_blocks() -> None:
    assert decide_tick(view([1], [(3, 11), (3, 1)])).admitted == ()


def test_admission_counts_the_blocks_of_those_admitted_just_before() -> None:
    assert decide_tick(view([], [(3, 6), (3, 4), (3, 1)])).admitted == ("w0", "w1")


def test_admission_stops_at_the_last_free_slot() -> None:
    assert decide_tick(view([], [(1, 1)] * 4, slots=3)).admitted == ("w0", "w1", "w2")


def test_a_contiguous_request_waits_for_a_long_enough_run() -> None:
    assert decide_tick(view([], [(3, 5)], longest_run=4, contiguous=True)).admitted == ()
    assert decide_tick(view([], [(3, 5)], longest_run=4, contiguous=False)).admitted == ("w0",)
    assert decide_tick(view([], [(3, 5), (3, 3)], longest_run=7, contiguous=True)).admitted == ("w0",)


def test_no_more_requests_run_than_the_budget_has_tokens() -> None:
    assert decide_tick(view([1, 1], [(1, 1)] * 4, budget=3)).admitted == ("w0",)
    assert decide_tick(view([1, 1, 1], [(1, 1)] * 4, budget=3)).admitted == ()


def test_an_empty_view_decides_nothing() -> None:
    assert decide_tick(view([])) == Decision((), ())


@given(
    running=st.lists(st.one_of(st.just(1), st.integers(1, 60)), max_size=8),
    waiting=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 6)), max_size=8),
    spare_budget=st.integers(0, 40),
    chunk=st.integers(1, 40),
    slots=st.integers(0, 8),
    blocks=st.integers(0, 20),
    longest_run=st.integers(0, 20),
    contiguous=st.booleans(),
)
@settings(derandomize=True, deadline=None, max_examples=500)
def test_every_decision_keeps_budget_chunks_order_and_room(
    running: list[int],
    waiting: list[tuple[int, int]],
    spare_budget: int,
    chunk: int,
    slots: int,
    blocks: int,
    longest_run: int,
    contiguous: bool,
) -> None:
    budget = max(1, len(running)) + spare_budget
    drawn = view(
        running,
        waiting,
        budget=budget,
        chunk=chunk,
        slots=slots,
        blocks=blocks,
        longest_run=longest_run,
        contiguous=contiguous,
    )
    decision = decide_tick(drawn)
    everyone: list[RunningView | WaitingView] = [*drawn.running, *drawn.waiting]
    shares = {share.request_id: share.num_tokens for share in decision.shares}
    remaining = {v.request_id: v.num_remaining for v in everyone}
    assert len(shares) == len(decision.shares)
    assert sum(shares.values()) <= budget
    assert all(1 <= n <= min(chunk, remaining[request_id]) for request_id, n in shares.items())
    assert all(shares[r.request_id] == 1 for r in drawn.running if r.num_remaining == 1)
    prefills = [s.request_id for s in decision.shares if remaining[s.request_id] > 1 and s.request_id in shares]
    assert prefills == [v.request_id for v in everyone if v.request_id in prefills]
    first_prefill = next((r for r in drawn.running if r.num_remaining > 1), None)
    assert first_prefill is None or first_prefill.request_id in shares
    assert decision.admitted == tuple(v.request_id for v in drawn.waiting[: len(decision.admitted)])
    assert set(decision.admitted) <= set(shares)
    assert len(decision.admitted) <= slots
    taken = sum(v.blocks[0] for v in drawn.waiting[: len(decision.admitted)])
    assert taken <= blocks
    assert not contiguous or taken <= longest_run
