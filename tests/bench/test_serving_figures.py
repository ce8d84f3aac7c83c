"""Figures of synthetic outcomes with known answers; no time passes here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.bench.load_cell import CellRun, Outcome
from octavo.bench.serving_figures import (
    Limits,
    RoundFigures,
    gaps,
    output_tokens,
    round_figures,
    summarise,
    time_per_token,
)

LIMITS = Limits(ttft_s=1.0, itl_s=0.1)


def outcome(*arrivals: float, **changes: object) -> Outcome:
    usual = Outcome("completed", 10, 8, 0.0, 9.0, arrivals, (0,) * len(arrivals), 10, len(arrivals), "length")
    return replace(usual, **changes)  # type: ignore[arg-type]


def figures(*outcomes: Outcome, concurrency: int = 2, round_: int = 1, wall_s: float = 2.0) -> RoundFigures:
    return round_figures(concurrency, round_, CellRun(outcomes, wall_s, 0.5), LIMITS)


def test_throughput_counts_the_tokens_of_completed_requests_over_the_wall_time():
    found = figures(
        outcome(0.1, 0.2, 0.3), outcome(0.1), outcome(0.1, 0.2, result="cancelled"), outcome(result="failed", error="x")
    )
    assert (found.output_tokens, found.output_tps, found.requests_ps) == (4, 2.0, 1.0)
    assert (found.completed, found.cancelled, found.failed, found.errors) == (2, 1, 1, {"x": 1})


def test_latencies_are_of_completed_requests_alone():
    found = figures(outcome(0.1, 0.2, 0.4), outcome(0.3, 0.4), outcome(5.0, 9.0, result="cancelled"))
    assert found.ttft_s is not None and found.itl_s is not None
    assert (found.ttft_s.count, found.ttft_s.p50) == (2, pytest.approx(0.2))
    assert (found.itl_s.count, found.itl_s.p50) == (3, pytest.approx(0.1))
    assert found.itl_s.p99 == pytest.approx(0.198)


def test_a_gap_between_chunks_is_not_divided_among_the_tokens_they_carry():
    bundled = outcome(1.0, 1.4, 1.8, completion_tokens=12)
    assert gaps(bundled) == pytest.approx([0.4, 0.4])
    assert figures(bundled).tokens_per_chunk == 4


def test_time_per_token_is_over_the_tokens_after_the_first_chunk():
    assert time_per_token(outcome(1.0, 1.2, 1.4)) == pytest.approx(0.2)
    assert time_per_token(outcome(1.0, 1.8, completion_tokens=9)) == pytest.approx(0.1)  # the first chunk counts 1
    known = outcome(1.0, 1.8, completion_tokens=9, chunk_tokens=(5, 4))
    assert time_per_token(known) == pytest.approx(0.2)
    assert time_per_token(outcome(1.0)) is None
    assert time_per_token(outcome()) is None


def test_tokens_without_usage_are_those_that_chunks_say_else_the_chunks():
    assert output_tokens(outcome(1.0, 2.0, completion_tokens=None)) == 2
    assert output_tokens(outcome(1.0, 2.0, completion_tokens=None, chunk_tokens=(3, 0))) == 4
    assert not figures(outcome(1.0, completion_tokens=None)).tokens_from_usage


@pytest.mark.parametrize(
    ("arrivals", "good"),
    [
        ((0.9, 1.0), True),
        ((1.0, 1.0625), True),
        ((1.1, 1.15), False),
        ((0.5, 0.7), False),
        ((0.5,), True),
        ((), False),
    ],
    ids=str,
)
def test_goodput_counts_requests_within_both_limits(arrivals, good):
    assert figures(outcome(*arrivals)).goodput_rps == (0.5 if good else 0.0)


def test_failed_and_cancelled_requests_are_no_goodput():
    assert figures(outcome(0.1, result="cancelled"), outcome(0.1, result="failed", error="x")).goodput_rps == 0


def test_prompts_of_another_length_than_asked_for_are_counted():
    found = figures(outcome(0.1), outcome(0.1, prompt_tokens=11), outcome(0.1, prompt_tokens=None))
    assert (found.exact_prompts, found.wrong_prompts) == (1, 1)


def test_a_round_without_an_answer_has_no_figures_and_is_not_good():
    found = figures(outcome(result="failed", error="HTTP 429: full"))
    assert (found.ttft_s, found.itl_s, found.tokens_per_chunk, found.output_lengths) == (None,) * 4
    assert not found.good


def test_a_summary_is_the_median_of_good_rounds_with_least_and_most():
    rounds = [
        figures(*[outcome(0.1, 0.2)] * tokens, concurrency=concurrency, round_=round_)
        for concurrency in (4, 1)
        for round_, tokens in enumerate((3, 1, 50), start=1)
    ]
    rounds.append(figures(outcome(result="failed", error="x"), concurrency=1, round_=4))
    one, four = summarise(rounds)
    assert (one.concurrency, four.concurrency) == (1, 4)
    assert (one.output_tps.median, one.output_tps.low, one.output_tps.high) == (3.0, 1.0, 50.0)
    assert (one.rounds, one.failed, four.failed) == (3, 1, 0)
    assert one.ttft_s["p95"].median == pytest.approx(0.1)
    assert one.client_cpu_share == 0.25


def test_a_cell_without_a_good_round_has_no_summary():
    assert summarise([figures(outcome(result="failed", error="x"))]) == []
    assert summarise([]) == []


def test_a_cell_whose_answers_are_empty_has_a_throughput_but_no_latency():
    (cell,) = summarise([figures(outcome(completion_tokens=1))])
    assert cell.output_tps.median == 0.5
    assert cell.ttft_s == {} and cell.itl_s == {} and cell.tokens_per_chunk is None
