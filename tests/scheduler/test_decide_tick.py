"""`decide_tick` on views, alone: budget, order, admission, growth, fairness."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.scheduler.policy import decide_tick, level_after
from octavo.scheduler.view import Decision, RunningView, SchedulerView, Share, WaitingView


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
    watermark: int = 0,
    interval: int = 4,
    squeezed: int = 0,
) -> SchedulerView:
    """Running requests r0, r1, … by tokens remaining; waiting ones w0, w1, … by (tokens remaining, blocks)."""
    return SchedulerView(
        running=tuple(RunningView(f"r{i}", n, arrival=i) for i, n in enumerate(running)),
        waiting=tuple(WaitingView(f"w{i}", n, (b,), contiguous) for i, (n, b) in enumerate(waiting or [])),
        free_slots=slots,
        available_blocks=(blocks,),
        longest_runs=(longest_run,),
        max_batch_tokens=budget,
        prefill_chunk=chunk,
        prefill_grant_interval=interval,
        watermark=(watermark,),
        squeezed_ticks=squeezed,
    )


def grower(name: str, blocks: int, *, level: int = 0, computed: int = 0, arrival: int = 0, preemptable: bool = True):
    """A decode row that needs `blocks` more for its next token."""
    return RunningView(name, 1, computed, level, arrival, (blocks,), preemptable)


def with_growth(*running: RunningView, blocks: int, waiting: tuple[WaitingView, ...] = ()) -> SchedulerView:
    return replace(view([], blocks=blocks), running=running, waiting=waiting)


# -- tokens -------------------------------------------------------------------------------------------------------


def test_decode_rows_come_before_the_prefill_that_arrived_earlier() -> None:
    decision = decide_tick(view([30, 1, 1], budget=6))
    assert decision == Decision((Share("r1", 1), Share("r2", 1), Share("r0", 4)))


def test_who_has_several_tokens_of_its_answer_to_compute_comes_before_prompts_that_were_admitted_earlier() -> None:
    rows = (RunningView("r0", 30), RunningView("r1", 3, is_answering=True), RunningView("r2", 1, is_answering=True))
    decision = decide_tick(replace(view([], budget=8), running=rows))
    assert decision.shares == (Share("r2", 1), Share("r1", 3), Share("r0", 4))


def test_several_prefills_share_a_step_in_the_order_of_admission() -> None:
    decision = decide_tick(view([30, 5, 30], budget=16))
    assert decision.shares == (Share("r0", 8), Share("r1", 5), Share("r2", 3))


def test_an_admitted_request_computes_its_first_chunk_in_the_same_step() -> None:
    assert decide_tick(view([1], [(30, 2)])) == Decision((Share("r0", 1), Share("w0", 8)), ("w0",))


def test_nobody_is_admitted_into_a_step_without_budget_left() -> None:
    assert decide_tick(view([30, 30], [(3, 1)], budget=16)).admitted == ()


def test_an_empty_view_decides_nothing() -> None:
    assert decide_tick(view([])) == Decision()


def test_decode_rows_that_fill_the_budget_leave_a_quarter_of_every_nth_step_to_prefill() -> None:
    drawn = view([1] * 8 + [30], budget=8, interval=3)
    prefilled = []
    for _ in range(7):
        decision = decide_tick(drawn)
        assert sum(share.num_tokens for share in decision.shares) == 8
        prefilled.append(sum(share.num_tokens for share in decision.shares if share.request_id == "r8"))
        drawn = replace(drawn, squeezed_ticks=decision.squeezed_ticks)
    assert prefilled == [0, 0, 2, 0, 0, 2, 0]


def test_a_request_in_line_is_granted_tokens_too_where_decode_rows_fill_the_budget() -> None:
    assert decide_tick(view([1] * 4, [(9, 1)], budget=4, squeezed=2)).admitted == ()
    assert decide_tick(view([1] * 4, [(9, 1)], budget=4, squeezed=3)).admitted == ("w0",)


def test_ticks_that_leave_prefill_its_quarter_start_the_count_anew() -> None:
    assert decide_tick(view([1] * 4 + [30], budget=8, squeezed=3)).squeezed_ticks == 0
    assert decide_tick(view([1] * 7 + [30], budget=8, squeezed=2)).squeezed_ticks == 3
    assert decide_tick(view([1] * 7 + [1], budget=8, squeezed=2)).squeezed_ticks == 0, "nobody wants to prefill"


def test_a_budget_of_one_token_alternates_even_where_every_tick_would_be_granted() -> None:
    drawn = view([1, 30], budget=1, interval=1)
    served = []
    for _ in range(4):
        decision = decide_tick(drawn)
        served += [share.request_id for share in decision.shares]
        drawn = replace(drawn, squeezed_ticks=decision.squeezed_ticks)
    assert served == ["r0", "r1", "r0", "r1"]


def test_of_more_decode_rows_than_tokens_those_left_out_longest_run() -> None:
    running = tuple(RunningView(f"r{i}", 1, idle_ticks=idle) for i, idle in enumerate([0, 2, 1, 2]))
    decision = decide_tick(replace(view([], budget=3), running=running))
    assert decision.shares == (Share("r1", 1), Share("r2", 1), Share("r3", 1))


# -- admission ----------------------------------------------------------------------------------------------------


def test_a_small_request_never_overtakes_a_large_one_that_waits_for_blocks() -> None:
    decision = decide_tick(view([1], [(3, 11), (3, 1)]))
    assert decision == Decision((Share("r0", 1),)), "and the deferral lets the decode row run"


def test_admission_counts_the_blocks_of_those_admitted_just_before() -> None:
    assert decide_tick(view([], [(3, 6), (3, 4), (3, 1)])).admitted == ("w0", "w1")


def test_admission_stops_at_the_last_free_slot() -> None:
    assert decide_tick(view([], [(1, 1)] * 4, slots=3)).admitted == ("w0", "w1", "w2")


def test_a_contiguous_request_waits_for_a_long_enough_run() -> None:
    assert decide_tick(view([], [(3, 5)], longest_run=4, contiguous=True)).admitted == ()
    assert decide_tick(view([], [(3, 5)], longest_run=4, contiguous=False)).admitted == ("w0",)
    assert decide_tick(view([], [(3, 5), (3, 3)], longest_run=7, contiguous=True)).admitted == ("w0",)


def test_beside_others_admission_leaves_the_watermark_free_and_alone_it_takes_all() -> None:
    assert decide_tick(view([1], [(3, 9)], watermark=2)).admitted == ()
    assert decide_tick(view([1], [(3, 8)], watermark=2)).admitted == ("w0",)
    assert decide_tick(view([], [(3, 10)], watermark=0)).admitted == ("w0",)


def test_those_admitted_raise_the_watermark_by_what_they_may_grow() -> None:
    drawn = view([1], [(1, 3)] * 4, watermark=1)
    spare = tuple(replace(waiting, spare=(1,)) for waiting in drawn.waiting)
    assert decide_tick(replace(drawn, waiting=spare)).admitted == ("w0", "w1"), "3 + 3 and 1 + 1 + 1 of 10"


def test_who_would_compute_what_another_computes_now_is_passed_over_and_may_be_overtaken() -> None:
    drawn = view([30], [(20, 1), (5, 1)], budget=32)
    held = (replace(drawn.waiting[0], behind=("r0",)), drawn.waiting[1])
    assert decide_tick(replace(drawn, waiting=held)).admitted == ("w1",)
    gone = (replace(drawn.waiting[0], behind=("r7",)), drawn.waiting[1])
    assert decide_tick(replace(drawn, waiting=gone)).admitted == ("w0", "w1"), "it never waits for who does not run"


def test_of_siblings_in_line_only_the_first_enters() -> None:
    drawn = view([], [(20, 1)] * 3, budget=32)
    siblings = tuple(replace(w, behind=("w0",) if i else ()) for i, w in enumerate(drawn.waiting))
    assert decide_tick(replace(drawn, waiting=siblings)).admitted == ("w0",)


def test_where_nobody_may_be_admitted_the_running_go_on() -> None:
    drawn = replace(view([1], [(3, 1)]), admits=False)
    assert decide_tick(drawn) == Decision((Share("r0", 1),))


# -- growth -------------------------------------------------------------------------------------------------------


def test_growth_comes_before_admission() -> None:
    waiting = (WaitingView("w0", 3, (3,)),)
    assert decide_tick(with_growth(grower("a", 2), blocks=4, waiting=waiting)).admitted == ()
    assert decide_tick(with_growth(grower("a", 1), blocks=4, waiting=waiting)).admitted == ("w0",)


def test_where_blocks_are_short_the_lowest_priority_gives_way_then_who_computed_least_then_the_newest() -> None:
    first = grower("first", 1, arrival=0)
    low = grower("low", 1, level=3, computed=900, arrival=1)
    short = grower("short", 1, computed=5, arrival=2)
    long = grower("long", 1, computed=50, arrival=3)
    new = grower("new", 1, computed=5, arrival=4)
    everyone = [first, low, short, long, new]
    gone = []
    while len(everyone) > 1:
        decision = decide_tick(with_growth(*everyone, blocks=0))
        assert decision.shares == decision.admitted == ()
        gone.append(decision.preempted)
        everyone = [r for r in everyone if r.request_id != decision.preempted]
    assert gone == ["low", "new", "short", "long"]


def test_who_ranks_first_gives_way_to_nobody_and_sits_out_what_others_hold() -> None:
    first, dense = grower("first", 1), RunningView("dense", 1, arrival=1)
    decision = decide_tick(with_growth(first, dense, blocks=0))
    assert decision == Decision((Share("dense", 1),))


def test_nobody_gives_way_where_there_is_enough() -> None:
    decision = decide_tick(with_growth(grower("a", 1), grower("b", 2, arrival=1), blocks=3))
    assert decision.shares == (Share("a", 1), Share("b", 1))


def test_a_request_rises_a_level_for_each_span_it_waited() -> None:
    assert [level_after(5, ticks, 100) for ticks in (0, 99, 100, 250, 1000)] == [5, 5, 4, 3, -5]


# -- whatever is drawn --------------------------------------------------------------------------------------------


runners = st.builds(
    lambda *fields: fields,
    st.one_of(st.just(1), st.integers(1, 60)),
    st.integers(0, 40),
    st.integers(-2, 2),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 5),
    st.booleans(),
)
views = st.builds(
    lambda running, waiting, budget, chunk, slots, blocks, run, contiguous, watermark, interval, squeezed: replace(
        view(
            [],
            waiting,
            budget=budget,
            chunk=chunk,
            slots=slots,
            blocks=blocks,
            longest_run=run,
            contiguous=contiguous,
            watermark=watermark,
            interval=interval,
            squeezed=min(squeezed, interval - 1),
        ),
        running=tuple(
            RunningView(f"r{i}", n, computed, level, i, (growth,) if growth else (), preemptable, idle, answering)
            for i, (n, computed, level, growth, preemptable, idle, answering) in enumerate(running)
        ),
    ),
    st.lists(runners, max_size=8),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 6)), max_size=8),
    st.integers(1, 60),
    st.integers(1, 40),
    st.integers(0, 8),
    st.integers(0, 20),
    st.integers(0, 20),
    st.booleans(),
    st.integers(0, 3),
    st.integers(1, 6),
    st.integers(0, 5),
)


@given(drawn=views)
@settings(derandomize=True, deadline=None, max_examples=1000)
def test_every_decision_keeps_budget_chunks_order_and_room(drawn: SchedulerView) -> None:
    decision = decide_tick(drawn)
    running = {r.request_id: r for r in drawn.running}
    if decision.preempted is not None:
        preemptable = [r for r in drawn.running if r.preemptable]
        assert running[decision.preempted].preemptable and len(preemptable) > 1
        assert decision.preempted != min(preemptable, key=lambda r: r.rank).request_id
        assert decision.shares == decision.admitted == ()
        assert sum(sum(r.growth) for r in drawn.running) > drawn.available_blocks[0]
        return
    everyone: list[RunningView | WaitingView] = [*drawn.running, *drawn.waiting]
    shares = {share.request_id: share.num_tokens for share in decision.shares}
    remaining = {v.request_id: v.num_remaining for v in everyone}
    assert len(shares) == len(decision.shares)
    assert sum(shares.values()) <= drawn.max_batch_tokens
    assert all(1 <= n <= min(drawn.prefill_chunk, remaining[request_id]) for request_id, n in shares.items())
    grown = sum(sum(running[request_id].growth) for request_id in shares if request_id in running)
    assert grown <= drawn.available_blocks[0]
    prefills = [s.request_id for s in decision.shares if remaining[s.request_id] > 1]
    ordered = sorted(everyone, key=lambda v: not (isinstance(v, RunningView) and v.is_answering))
    assert prefills == [v.request_id for v in ordered if v.request_id in prefills]
    assert decision.admitted == tuple(v.request_id for v in drawn.waiting[: len(decision.admitted)])
    assert set(decision.admitted) <= set(shares) and len(decision.admitted) <= drawn.free_slots
    taken = sum(v.blocks[0] for v in drawn.waiting[: len(decision.admitted)])
    assert taken + grown <= drawn.available_blocks[0]
    assert not drawn.waiting or not drawn.waiting[0].contiguous or taken <= drawn.longest_runs[0]
    if decision.admitted and drawn.running:
        assert taken + grown + drawn.watermark[0] <= drawn.available_blocks[0]
    assert 0 <= decision.squeezed_ticks < max(2, drawn.prefill_grant_interval)
    movable = [r for r in drawn.running if not r.growth]
    assert not movable or shares, "somebody runs"
    left_out = [r for r in movable if r.num_remaining == 1 and r.request_id not in shares]
    if left_out:  # the step is full, but of prefill no more than a grant
        assert sum(shares.values()) == drawn.max_batch_tokens
        assert sum(shares[name] for name in prefills) <= max(1, drawn.max_batch_tokens // 4)
        served = [running[n].idle_ticks for n in shares if n in running and running[n].num_remaining == 1]
        assert all(r.idle_ticks <= min(served, default=9) for r in left_out), "those left out longest come first"


@given(
    decodes=st.integers(0, 12),
    prefills=st.lists(st.integers(2, 200), min_size=1, max_size=3),
    budget=st.integers(1, 16),
    interval=st.integers(1, 5),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_neither_decode_nor_prefill_starves(decodes: int, prefills: list[int], budget: int, interval: int) -> None:
    """Decode rows go on for ever and prefill never ends; nobody is left out longer than turns take."""
    drawn = view([1] * decodes + [10**6] * len(prefills), budget=budget, chunk=8, interval=interval)
    rows = {r.request_id: r for r in drawn.running}
    first_prefill = f"r{decodes}"
    idle = dict.fromkeys(rows, 0)
    for _ in range(200):
        now = tuple(replace(r, idle_ticks=idle[name]) for name, r in rows.items())
        decision = decide_tick(replace(drawn, running=now, squeezed_ticks=drawn.squeezed_ticks))
        drawn = replace(drawn, squeezed_ticks=decision.squeezed_ticks)
        served = {share.request_id for share in decision.shares}
        idle = {name: 0 if name in served else ticks + 1 for name, ticks in idle.items()}
        assert idle[first_prefill] <= max(interval, 2)
        slowest = max((idle[name] for name, row in rows.items() if row.num_remaining == 1), default=0)
        assert slowest <= 2 * -(-decodes // max(1, budget - max(1, budget // 4))) + 1
