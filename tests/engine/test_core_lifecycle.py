"""How requests end, by themselves or from outside, and that nothing of them stays behind."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import share_weights
from octavo.errors import InvalidRequest
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.combinations import by_day
from tests.engine.broken_steps import fail_once, run_through
from tests.engine.tiny_engines import GREEDY_12, STORAGES, Driver, alone, prompt_of
from tests.tiny_models import EOS_TOKEN_ID

EOS_NOW = SamplingParams(max_tokens=12, logit_bias={EOS_TOKEN_ID: 1e4})


both_storages = pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)


@both_storages
def test_an_end_token_ends_with_stop_and_counts_as_output(load, storage):
    driver = Driver(load(), storage)
    driver.add("a", prompt_of(5), EOS_NOW)
    outcome = driver.run()["a"]
    assert (outcome.token_ids, outcome.text, outcome.finish_reason) == ([EOS_TOKEN_ID], "", "stop")
    driver.assert_idle()


def test_ignore_eos_goes_on_to_the_length(load):
    driver = Driver(load())
    driver.add("a", prompt_of(5), SamplingParams(max_tokens=4, logit_bias={EOS_TOKEN_ID: 1e4}, ignore_eos=True))
    outcome = driver.run()["a"]
    assert (outcome.token_ids, outcome.finish_reason) == ([EOS_TOKEN_ID] * 4, "length")


@both_storages
def test_a_stop_string_ends_with_stop_before_its_text(load, storage):
    expected = alone(load(), prompt_of(5))
    stop = expected.text[3:5]
    driver = Driver(load(), storage)
    driver.add("a", prompt_of(5), SamplingParams(max_tokens=12, ignore_eos=True, stop=[stop]))
    outcome = driver.run()["a"]
    assert (outcome.text, outcome.finish_reason) == (expected.text[: expected.text.index(stop)], "stop")
    assert len(outcome.token_ids) < 12
    driver.assert_idle()


@both_storages
@pytest.mark.parametrize("when", ["queued", "prefill", "decode", "finished"])
def test_an_aborted_request_leaves_nothing_and_disturbs_nobody(load, storage, when):
    loaded = load("gemma3")
    driver = Driver(loaded, storage, max_num_seqs=2, prefill_chunk=16)
    driver.add("first", prompt_of(20))
    if when == "queued":
        driver.add("other", prompt_of(30))
    driver.add("victim", prompt_of(40, seed=1))
    steps = {"queued": 1, "prefill": 2, "decode": 5, "finished": 30}[when]
    for _ in range(steps):
        driver.step()
    assert bool(driver.outcomes["victim"].token_ids) == (when in ("decode", "finished"))
    assert driver.outcomes["victim"].finish_reason == ("length" if when == "finished" else None)
    driver.core.abort("victim")
    driver.core.abort("victim")  # a second time, and whom nobody knows: no error
    driver.core.abort("stranger")
    tokens_then = list(driver.outcomes["victim"].token_ids)
    driver.add("last", prompt_of(7))
    driver.run()
    driver.assert_idle()
    assert driver.outcomes["victim"].token_ids == tokens_then
    for request_id, length in (("first", 20), ("last", 7)):
        assert driver.outcomes[request_id].token_ids == alone(loaded, prompt_of(length)).token_ids


def test_an_aborted_id_can_be_used_again_and_one_in_use_cannot(load):
    driver = Driver(load())
    driver.add("a", prompt_of(20))
    with pytest.raises(InvalidRequest, match="'a' is in use"):
        driver.core.add(Request("a", prompt_of(3), GREEDY_12, 0))
    driver.step()
    driver.core.abort("a")
    driver.add("a", prompt_of(6))
    assert driver.run()["a"].token_ids == alone(load(), prompt_of(6)).token_ids
    driver.assert_idle()


@both_storages
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_request_whose_logits_break_ends_with_its_error_while_others_go_on(load, storage, bad):
    loaded = load()
    config = EngineConfig(max_context=512, threads=1)
    sampled = {"broken": 0}

    def break_third(request_id: str, logits: torch.Tensor) -> None:
        if request_id == "broken":
            sampled[request_id] += 1
            if sampled[request_id] == 3:
                logits[7] = bad

    driver = Driver(loaded, storage)
    driver.core = EngineCore(share_weights(loaded, config, StorageDecision(storage, "test")), config, break_third)
    for request_id in ("before", "broken", "after"):
        driver.core.add(Request(request_id, prompt_of(9), GREEDY_12, 0))
    events = []
    while driver.core.has_work:
        events += driver.core.step()
    expected = alone(loaded, prompt_of(9))
    for request_id in ("before", "after"):
        mine = [event for event in events if event.delta.request_id == request_id]
        assert [token for event in mine for token in event.delta.token_ids] == expected.token_ids
    broken = [event for event in events if event.delta.request_id == "broken"]
    assert [token for event in broken for token in event.delta.token_ids] == expected.token_ids[:2]
    last = broken[-1]
    assert last.delta.finish_reason == "error"
    assert last.error is not None and "NaN" in last.error and "\n" not in last.error
    driver.assert_idle()


@pytest.mark.parametrize(
    ("case", "storage", "part", "failing"),
    by_day(
        ("llama", "gemma3"), STORAGES, ("runner.forward", "_steps._sampler.draw", "_steps._on_logits"), tuple(range(6))
    ),
    ids=lambda value: value.value if isinstance(value, StorageKind) else str(value),
)
def test_a_step_that_is_interrupted_loses_nothing(load, case, storage, failing, part, monkeypatch):
    """Wherever a step is broken off, the same requests go on with the next one as if it had not happened."""
    loaded = load(case)
    driver = Driver(loaded, storage, max_num_seqs=2, prefill_chunk=16)
    prompts = {"a": prompt_of(40), "b": prompt_of(3), "c": prompt_of(9)}
    for request_id, prompt in prompts.items():
        driver.add(request_id, prompt)
    fail_once(monkeypatch, driver.core, part, failing, at_once=True)
    assert run_through(driver) == 1
    for request_id, prompt in prompts.items():
        assert driver.outcomes[request_id].token_ids == alone(loaded, prompt).token_ids
    driver.assert_idle()


def kinds_of_ends(rng: random.Random, greedy_text: str):
    """(kind, params) of the report's mix; the aborted ones would run for long."""
    long = SamplingParams(max_tokens=100, ignore_eos=True)
    return rng.choice(
        [
            ("stop", EOS_NOW),
            ("length", SamplingParams(max_tokens=rng.randint(1, 6), ignore_eos=True)),
            ("stop string", SamplingParams(max_tokens=12, ignore_eos=True, stop=[greedy_text[2:4]])),
            ("abort in queue", long),
            ("abort in prefill", long),
            ("abort in decode", long),
            ("refused", SamplingParams(max_tokens=3, logit_bias={10**6: 1.0})),
        ]
    )


@pytest.mark.parametrize(
    ("case", "storage"),
    [
        ("llama", StorageKind.DENSE),
        ("gemma3", StorageKind.PAGED),
        pytest.param("llama", StorageKind.PAGED, marks=pytest.mark.nightly),
        pytest.param("gemma3", StorageKind.DENSE, marks=pytest.mark.nightly),
    ],
    ids=lambda value: value if isinstance(value, str) else value.value,
)
def test_blocks_return_to_the_start_value_at_every_idle_point(load, storage, case):  # report R031
    loaded = load(case)
    greedy_text = alone(loaded, prompt_of(30)).text
    driver = Driver(loaded, storage, max_num_seqs=8, max_batch_tokens=64, prefill_chunk=16)
    rng = random.Random(31)
    ends: dict[str, int] = {}
    for burst in range(5):
        kinds: dict[str, str] = {}
        for i in range(40):
            kind, params = kinds_of_ends(rng, greedy_text)
            ends[kind] = ends.get(kind, 0) + 1
            request_id = f"{burst}-{i}"
            if kind == "refused":
                with pytest.raises(InvalidRequest):
                    driver.add(request_id, prompt_of(30), params)
                continue
            kinds[request_id] = kind
            # Beginnings of their own, so that no prefix is found cached and every stage takes its time.
            own = [] if kind == "stop string" else [5 + 40 * burst + i]
            driver.add(request_id, [*own, *prompt_of(30)[len(own) :]], params)
        while driver.core.has_work:
            driver.step()
            for request_id, live in list(driver.core._live.items()):
                computed, kind = live.state.num_computed_tokens, kinds[request_id]
                stage = "queue" if not computed else "prefill" if computed < 30 else "decode"
                if kind == f"abort in {stage}" and (stage != "queue" or rng.random() < 0.5):
                    driver.core.abort(request_id)
        driver.assert_idle()
        for request_id, kind in kinds.items():
            finish = {"stop": "stop", "stop string": "stop", "length": "length"}.get(kind)
            assert driver.outcomes[request_id].finish_reason == finish or kind == "abort in queue"
    assert len(ends) == 7 and sum(ends.values()) == 200


def test_requests_are_admitted_in_order_of_arrival_whatever_their_size(load):
    driver = Driver(load(), StorageKind.PAGED, max_num_seqs=8, num_kv_blocks=8, max_batch_tokens=512)
    for i, length in enumerate((100, 5, 5, 60, 5)):
        driver.add(str(i), prompt_of(length))
    first_seen: list[str] = []
    while driver.core.has_work:
        first_seen += [e.delta.request_id for e in driver.step() if e.delta.request_id not in first_seen]
    assert all(int(a) < int(b) for a, b in pairwise(first_seen))
    driver.assert_idle()
