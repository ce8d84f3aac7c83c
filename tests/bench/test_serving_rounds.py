"""Whole runs against a stub: what is found out about the endpoint, what is kept when it fails."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from octavo.bench.load_mix import Mix
from octavo.bench.serving import ServingProtocol, ServingRun, Watcher, bench_serving, check_rounds, rotated
from octavo.bench.serving_figures import Limits
from octavo.errors import CapacityError, EngineFault, InvalidRequest, OctavoError
from tests.bench.stub_endpoint import StubEndpoint, serving_stub
from tests.bench.test_serving_figures import figures, outcome


def protocol(stub: StubEndpoint, mix_name: str = "plain", **changes: Any) -> ServingProtocol:
    settings: dict[str, Any] = {
        "concurrencies": (1, 2, 3),
        "mix": Mix.of(mix_name, 16, 6, 50, 25),
        "rounds": 3,
        "requests_per_client": 2,
        "limits": Limits(60, 60),
        "seed": 5,
        "timeout_s": 20,
    }
    return ServingProtocol(url=stub.url, **{**settings, **changes})


def measured(stub: StubEndpoint, mix_name: str = "plain", **changes: Any) -> ServingRun:
    run = ServingRun(protocol(stub, mix_name, **changes))
    asyncio.run(bench_serving(run))
    return run


def broken(
    stub: StubEndpoint, error: type[OctavoError], **changes: Any
) -> tuple[ServingRun, str, list[dict[str, Any]]]:
    """The run, its error and the raw lines of one that must fail."""
    run, raw = ServingRun(protocol(stub, **changes)), io.StringIO()
    with pytest.raises(error) as caught:
        asyncio.run(bench_serving(run, raw=raw))
    return run, str(caught.value), [json.loads(line) for line in raw.getvalue().splitlines()]


def test_a_complete_run_has_every_cell_of_every_round_in_rotating_order():
    with serving_stub() as stub:
        run = measured(stub)
    assert run.problem is None
    assert [(each.round, each.concurrency) for each in run.rounds] == [
        *((1, n) for n in (1, 2, 3)),
        *((2, n) for n in (2, 3, 1)),
        *((3, n) for n in (3, 1, 2)),
    ]
    assert [each.completed for each in run.rounds] == [each.concurrency * 2 for each in run.rounds]
    assert [each.output_tokens for each in run.rounds] == [each.completed * 6 for each in run.rounds]
    assert all(each.wrong_prompts == 0 and each.exact_prompts == each.completed for each in run.rounds)
    assert [each.concurrency for each in run.cells] == [1, 2, 3]


def test_the_warm_up_is_not_recorded_and_no_prompt_is_sent_twice():
    with serving_stub() as stub:
        run = measured(stub)
        probes = 1
        assert len(stub.streams) == probes + 3 + sum(each.completed for each in run.rounds)
        prompts = [tuple(each) for each in stub.prompts()[probes:]]
    assert len(set(prompts)) == len(prompts)
    assert {len(each) for each in prompts} == {16}


def test_each_request_is_greedy_and_ignores_the_end_where_that_is_taken():
    with serving_stub() as stub:
        run = measured(stub)
        body = stub.streams[-1]
    assert (body["temperature"], body["ignore_eos"], body["max_tokens"], body["model"]) == (0, True, 6, "stub-model")
    assert run.endpoint is not None
    assert run.endpoint.software is not None and run.endpoint.software.endswith("1.2.3")


def test_an_endpoint_that_refuses_ignore_eos_is_measured_without_and_tells_real_lengths():
    with serving_stub(refused_fields=("ignore_eos",), answer_tokens=4) as stub:
        run = measured(stub)
        assert "ignore_eos" not in stub.streams[-1]
    assert run.endpoint is not None and not run.endpoint.ignore_eos and run.endpoint.include_usage
    assert {each.output_lengths for each in run.rounds} == {(4, 4)}


def test_an_endpoint_that_refuses_include_usage_has_its_chunks_counted():
    with serving_stub(refused_fields=("stream_options",), tokens_per_chunk=2) as stub:
        run = measured(stub)
    assert run.endpoint is not None and not run.endpoint.include_usage and run.endpoint.ignore_eos
    assert not any(each.tokens_from_usage for each in run.rounds)
    assert [each.output_tokens for each in run.rounds] == [each.completed * 3 for each in run.rounds]


def test_chunks_of_several_tokens_are_told():
    with serving_stub(tokens_per_chunk=3, logprobs=True) as stub:
        run = measured(stub)
    assert {each.tokens_per_chunk for each in run.cells} == {3.0}


def test_an_endpoint_with_chat_alone_is_measured_by_chat():
    with serving_stub(has_completions=False, overhead=5) as stub:
        run = measured(stub)
        assert "messages" in stub.streams[-1]
    assert run.endpoint is not None and run.endpoint.api == "chat"
    assert all(each.wrong_prompts == 0 for each in run.rounds)


def test_the_cancel_mix_hangs_up_and_goes_on():
    with serving_stub() as stub:
        run = measured(stub, "cancel", concurrencies=(4,))
    assert [(each.cancelled, each.completed, each.failed) for each in run.rounds] == [(2, 6, 0)] * 3


def test_the_shared_prefix_mix_shares_half_of_every_prompt():
    with serving_stub() as stub:
        measured(stub, "shared-prefix")
        prompts = stub.prompts()[1:]
    assert len({tuple(each[:8]) for each in prompts}) == 1
    assert len({tuple(each[8:]) for each in prompts}) == len(prompts)


def test_the_ragged_mix_sends_exact_prompts_of_many_lengths():
    with serving_stub(takes_ids=False, overhead=1) as stub:
        run = measured(stub, "ragged")
    assert all(each.wrong_prompts == 0 and each.exact_prompts == each.completed for each in run.rounds)
    assert any(low < high for low, high in (each.output_lengths or (0, 0) for each in run.rounds))


def test_some_refused_requests_are_counted_and_the_rest_measured():
    with serving_stub(fails={5: (429, "queue is full"), 7: (429, "queue is full")}) as stub:
        run = measured(stub)
    assert run.problem is None
    assert sum(each.failed for each in run.rounds) == 2
    assert {error for each in run.rounds for error in each.errors} == {"HTTP 429: queue is full"}


def test_an_endpoint_that_dies_is_told_by_round_and_concurrency_and_what_it_gave_is_kept():
    # 1 probe, 3 for warm-up, 12 of round 1; round 2 begins with concurrency 2.
    with serving_stub(dies_at=17) as stub:
        run, error, raw = broken(stub, EngineFault)
    assert error.startswith("the endpoint died in round 2 of 3, concurrency 2: ")
    assert run.problem == error
    assert [each.concurrency for each in run.rounds] == [1, 2, 3, 2]
    assert run.rounds[-1].failed > 0
    assert len(raw) == 12 + 4
    assert {each["result"] for each in raw[:12]} == {"completed"}
    found = run.as_object()
    assert (found["complete"], found["problem"]) == (False, error)
    assert len(found["rounds"]) == 4


def test_a_cell_with_too_few_rounds_is_named_with_the_reason():
    with serving_stub(fails_from=16) as stub:  # all of rounds 2 and 3
        run, error, _ = broken(stub, EngineFault)
    assert error.startswith("too few rounds: concurrency 1 has 1 good rounds of 3 (HTTP 500: out of order); ")
    assert "at least 3 are needed" in error
    assert len(run.rounds) == 9


def test_a_warm_up_without_an_answer_ends_the_run():
    with serving_stub(fails_from=1) as stub:
        run, error, _ = broken(stub, EngineFault)
    assert error == "warm-up at concurrency 3: every request failed: HTTP 500: out of order"
    assert run.rounds == [] and run.problem == error


def test_an_endpoint_that_is_not_there_is_told_with_its_address():
    with serving_stub() as stub:
        pass
    _, error, raw = broken(stub, CapacityError)
    assert error.startswith(f"{stub.url} cannot be reached (") and "check --url" in error
    assert raw == []


@pytest.mark.parametrize(
    ("behaviour", "fragment"),
    [
        ({"fails_from": 0}, "/v1/completions answers HTTP 500: out of order; it lists 'stub-model'"),
        ({"key": "secret"}, "lists no model (HTTP 401: wrong key); give --api-key"),
        ({"lists_models": False}, "lists no model (HTTP 404: no such route); give --model"),
        ({"refused_fields": ("model",)}, "/v1/completions answers HTTP 400: unknown field model"),
    ],
    ids=str,
)
def test_an_endpoint_that_refuses_is_told_with_its_own_words(behaviour, fragment):
    with serving_stub(**behaviour) as stub:
        _, error, _ = broken(stub, InvalidRequest)
    assert fragment in error


def test_the_key_is_sent_and_never_kept():
    with serving_stub(key="secret") as stub:
        run, raw = ServingRun(protocol(stub)), io.StringIO()
        asyncio.run(bench_serving(run, api_key="secret", raw=raw))
    assert run.problem is None
    assert "secret" not in json.dumps(run.as_object()) + raw.getvalue()


def test_a_key_that_no_header_can_carry_is_refused():
    with serving_stub() as stub, pytest.raises(InvalidRequest, match="api key has characters"):
        asyncio.run(bench_serving(ServingRun(protocol(stub)), api_key="a\r\nb: c"))


def test_progress_covers_every_answer():
    begun: list[int] = []
    cells: list[str] = []
    answers: list[int] = []
    watcher = Watcher(lambda label, total: begun.append(total), cells.append, lambda: answers.append(1))
    with serving_stub() as stub:
        asyncio.run(bench_serving(ServingRun(protocol(stub)), watcher=watcher))
    assert begun == [len(answers)]
    assert cells[:2] == ["warm-up, concurrency 3", "round 1 of 3, concurrency 1"]
    assert len(cells) == 10


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"rounds": 0}, "rounds is 0; it must be 1 to"),
        ({"requests_per_client": 0}, "requests is 0"),
        ({"concurrencies": (1, 0)}, "concurrency is 0"),
        ({"concurrencies": (1, 4, 1)}, "the concurrencies are 1, 4, 1; name each only once"),
        ({"timeout_s": 0}, "timeout is 0"),
        ({"limits": Limits(0, 1)}, "--slo-ttft"),
        ({"mix": Mix.of("plain", 0, 6, 50, 25)}, "prompt tokens is 0"),
        ({"mix": Mix.of("cancel", 16, 1, 50, 25)}, "max tokens is 1; it must be 2 to"),
        ({"mix": Mix.of("shared-prefix", 16, 6, 101, 25)}, "shared percent is 101; it must be 0 to 100"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused_before_anything_is_sent(changes, fragment):
    with serving_stub() as stub:
        _, error, _ = broken(stub, InvalidRequest, **changes)
        assert stub.streams == []
    assert fragment in error


def test_the_order_rotates_so_that_each_cell_is_first_equally_often():
    orders = [rotated((1, 4, 8), round_) for round_ in range(6)]
    assert sorted(order[0] for order in orders) == [1, 1, 4, 4, 8, 8]
    assert all(sorted(order) == [1, 4, 8] for order in orders)


def test_fewer_rounds_than_three_are_enough_if_no_more_were_asked_for():
    good = [figures(outcome(0.1), concurrency=1, round_=1)]
    check_rounds(good, (1,), 1)
    with pytest.raises(EngineFault, match="concurrency 1 has 1 good rounds of 2"):
        check_rounds(good, (1,), 2)
