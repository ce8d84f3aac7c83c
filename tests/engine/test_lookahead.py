"""Decode lookahead: a step is given to the device before the tokens of the one before are read, and nothing shows it.

On a CPU nothing is gained by it, yet it computes the same there.
"""

from __future__ import annotations

import random

import pytest

from octavo.config import EngineConfig
from octavo.engine.hand_off import HandOff
from octavo.errors import InvalidRequest
from octavo.grammar_spec import GrammarSpec
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.broken_steps import BrokenOff, fail_once, run_through
from tests.engine.tiny_engines import GREEDY_12, STORAGES, Driver, Outcome, alone, prompt_of

SEEDED = SamplingParams(max_tokens=30, temperature=1.0, top_k=50, ignore_eos=True)
GREEDY_30 = SamplingParams(max_tokens=30, ignore_eos=True)


class Stumble(Exception):
    """As a fault of the device."""


def ahead(loaded, storage: StorageKind = StorageKind.PAGED, **settings) -> tuple[Driver, list[int]]:
    """A driver that looks ahead, and the number of rows of each step that was launched so."""
    driver = Driver(loaded, storage, decode_lookahead=True, **settings)
    launched, schedule = [], driver.core._scheduler.schedule_ahead

    def noted():
        step = schedule()
        if step is not None:
            launched.append(len(step.states))
        return step

    driver.core._scheduler.schedule_ahead = noted  # type: ignore[method-assign]
    return driver, launched


def assert_alone(loaded, driver: Driver, name: str, prompt, params: SamplingParams, seed: int = 0) -> None:
    expected, got = alone(loaded, prompt, params, seed=seed), driver.outcomes[name]
    assert (got.token_ids, got.text) == (expected.token_ids, expected.text)
    assert got.finish_reason == expected.finish_reason


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("case", ["llama", "gemma3", "mistral-window-5"])
def test_requests_that_come_stop_and_are_aborted_get_what_they_get_alone(load, case, storage):
    loaded, rng = load(case), random.Random(3)
    driver, launched = ahead(loaded, storage, max_num_seqs=4, prefill_chunk=16)
    wanted, aborted = {}, set()
    for n in range(14):
        prompt = prompt_of(rng.choice([3, 9, 16, 40]), n)
        text = alone(loaded, prompt, GREEDY_30).text
        params = rng.choice(
            [GREEDY_30, SEEDED, SamplingParams(max_tokens=1), SamplingParams(max_tokens=30, stop=(text[4:6],))]
        )
        wanted[f"{n}"] = (prompt, params, n)
        driver.add(f"{n}", prompt, params, n)
        for _ in range(rng.randrange(5)):
            driver.step()
        if rng.random() < 0.2 and driver.outcomes[f"{n}"].finish_reason is None:
            driver.core.abort(f"{n}")
            aborted.add(f"{n}")
    driver.run()
    assert len(launched) >= 20 and max(launched) >= 3 and aborted
    for name, (prompt, params, seed) in wanted.items():
        if name not in aborted:
            assert_alone(loaded, driver, name, prompt, params, seed)
    driver.assert_idle()


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("failing", [3, 4, 7, 9])
@pytest.mark.parametrize("part", ["runner.forward", "_steps._sampler.draw", "_steps._sampler.read"])
@pytest.mark.parametrize("failure", [BrokenOff, Stumble])
def test_wherever_a_step_fails_nothing_is_lost(load, storage, part, failing, failure, monkeypatch):
    loaded = load("gemma3-window-5")
    driver, launched = ahead(loaded, storage, max_num_seqs=3, prefill_chunk=16)
    prompts = {"a": prompt_of(20), "b": prompt_of(3), "c": prompt_of(9)}
    for name, prompt in prompts.items():
        driver.add(name, prompt)
    fail_once(monkeypatch, driver.core, part, failing, failure)
    assert run_through(driver) == (failure is BrokenOff) and launched
    for name, prompt in prompts.items():
        assert_alone(loaded, driver, name, prompt, GREEDY_12)
    driver.assert_idle()


def test_logits_that_break_end_their_request_and_the_row_that_followed_it_says_nothing(load, monkeypatch):
    loaded = load()
    driver, launched = ahead(loaded, max_num_seqs=2)
    driver.add("bad", prompt_of(5))
    driver.add("good", prompt_of(7))
    logits, calls = driver.core.runner.logits, iter(range(1000))

    def breaking(hidden):
        found = logits(hidden)
        if next(calls) == 4:
            found[0] = float("nan")
        return found

    monkeypatch.setattr(driver.core.runner, "logits", breaking)
    driver.run()
    bad = driver.outcomes["bad"]
    assert (bad.finish_reason, len(bad.token_ids)) == ("error", 4) and "NaN" in (bad.error or "")
    assert launched[4] == 2, "the row was on its way"
    assert_alone(loaded, driver, "good", prompt_of(7), GREEDY_12)
    driver.assert_idle()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=12, logprobs=2, ignore_eos=True),
        SamplingParams(max_tokens=12, presence_penalty=0.5, ignore_eos=True),
        SamplingParams(max_tokens=12, grammar=GrammarSpec("regex", "[a-z]{3,9}")),
        SamplingParams(max_tokens=0, prompt_logprobs=1),
    ],
    ids=["logprobs", "penalty", "grammar", "scores"],
)
def test_who_needs_the_host_at_each_step_keeps_the_batch_from_looking_ahead(load, params):
    loaded = load()
    driver, launched = ahead(loaded, max_num_seqs=2)
    driver.add("reads", prompt_of(5), params)
    driver.add("plain", prompt_of(7), GREEDY_30)
    while driver.outcomes["reads"].finish_reason is None:
        assert 2 not in launched
        driver.step()
    driver.run()
    assert len(launched) >= 12, "then it looks ahead again"
    assert_alone(loaded, driver, "reads", prompt_of(5), params)
    assert_alone(loaded, driver, "plain", prompt_of(7), GREEDY_30)


def test_an_id_is_free_again_while_the_token_of_its_former_request_is_on_its_way(load):
    loaded = load()
    driver, launched = ahead(loaded, max_num_seqs=2)
    driver.add("a", prompt_of(5), GREEDY_30)
    driver.add("b", prompt_of(6), GREEDY_30)
    for _ in range(4):
        driver.step()
    assert launched
    driver.core.abort("a")
    driver.add("a", prompt_of(9), SEEDED, seed=7)
    driver.run()
    assert_alone(loaded, driver, "a", prompt_of(9), SEEDED, 7)
    assert_alone(loaded, driver, "b", prompt_of(6), GREEDY_30)


def test_prompts_in_chunks_beside_answers_keep_nothing_from_looking_ahead(load):
    loaded = load()
    driver, launched = ahead(loaded, max_num_seqs=3, prefill_chunk=16, prefix_cache=False)
    wanted = {f"{n}": (prompt_of(20 + 9 * n, n), n) for n in range(8)}
    for name, (prompt, n) in wanted.items():
        driver.add(name, prompt, GREEDY_12, n)
    num_steps = 0
    while driver.core.has_work:
        driver.step()
        num_steps += 1
    assert num_steps > 40 and len(launched) == num_steps - 1
    for name, (prompt, n) in wanted.items():
        assert_alone(loaded, driver, name, prompt, GREEDY_12, n)


def test_who_comes_to_a_free_slot_runs_with_the_next_step_and_who_waits_is_looked_after(load):
    driver, launched = ahead(load(), max_num_seqs=2)
    driver.add("a", prompt_of(5), SamplingParams(max_tokens=200, ignore_eos=True))
    for _ in range(20):
        driver.step()
    assert len(launched) >= 18
    driver.add("b", prompt_of(6), GREEDY_30)
    driver.step()  # what is on its way
    driver.step()
    assert len(driver.outcomes["b"].token_ids) == 1
    driver.add("waits", prompt_of(3), GREEDY_12)
    driver.run()
    assert driver.outcomes["waits"].finish_reason == "length"


@pytest.mark.parametrize("how", ["abort", "finish"])
def test_an_engine_whose_requests_have_all_gone_comes_to_rest(load, how):
    driver, launched = ahead(load(), max_num_seqs=2)
    params = GREEDY_30 if how == "abort" else SamplingParams(max_tokens=30, stop_token_ids=tuple(range(380)))
    driver.add("a", prompt_of(5), params)
    for _ in range(3 if how == "abort" else 1):
        driver.step()
    assert launched
    driver.core.abort("a")
    driver.run()
    driver.assert_idle()


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
def test_preemption_and_export_find_the_state_after_the_latest_token_told(load, storage):
    loaded = load()
    driver, launched = ahead(loaded, storage, max_num_seqs=2)
    driver.add("a", prompt_of(20), GREEDY_30)
    driver.add("b", prompt_of(9), GREEDY_30)
    for _ in range(5):
        driver.step()
    assert launched
    snapshot = driver.core.export("a")
    driver.core.preempt("b")
    driver.run()
    assert_alone(loaded, driver, "a", prompt_of(20), GREEDY_30)
    assert_alone(loaded, driver, "b", prompt_of(9), GREEDY_30)
    other = Driver(loaded, storage, max_num_seqs=1)
    prompt = (*prompt_of(20), *driver.outcomes["a"].token_ids[:15])
    assert snapshot.token_ids == prompt[: snapshot.num_tokens]
    other.core.add(Request("on", prompt, SamplingParams(max_tokens=15, ignore_eos=True), 0), HandOff(start=snapshot))
    other.outcomes["on"] = Outcome()
    assert other.run()["on"].token_ids == driver.outcomes["a"].token_ids[15:]


def test_a_pool_too_small_for_all_is_shared_as_without(load):
    loaded = load()
    driver, launched = ahead(loaded, max_context=128, max_num_seqs=6, prefill_chunk=16, num_kv_blocks=12)
    for n in range(8):
        driver.add(f"{n}", prompt_of(5 + 7 * n, n), SamplingParams(max_tokens=60, ignore_eos=True), n)
    driver.run()
    assert driver.core.preemptions >= 3 and launched
    for n in range(8):
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        assert_alone(loaded, driver, f"{n}", prompt_of(5 + 7 * n, n), params, n)
    driver.assert_idle()


def test_without_a_word_a_cpu_does_not_look_ahead_and_a_wrong_word_is_refused(load):
    driver = Driver(load())
    driver.add("a", prompt_of(5))
    driver.run()
    assert driver.core._ahead is None and not driver.core._looks_ahead
    with pytest.raises(InvalidRequest, match="decode lookahead is 1; it must be true, false"):
        EngineConfig(decode_lookahead=1)  # type: ignore[arg-type]
