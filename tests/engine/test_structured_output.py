"""Requests that are held to a grammar, in the step loop: what they give, in any company, and how they end."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest
import torch

from octavo.engine.grammar_queue import GrammarQueue
from octavo.errors import InvalidGrammar, InvalidRequest
from octavo.grammar.check_process import check
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar_spec import GrammarSpec
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import STORAGES, Driver, Outcome, prompt_of

SCHEMA = GrammarSpec.json_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "size": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "size", "tags"],
        "additionalProperties": False,
    }
)
WORDS = GrammarSpec.regex("[a-z]{3,9}( [a-z]{3,9}){1,2}")


def held_to(grammar: GrammarSpec, **fields) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 80, "temperature": 1.0, "grammar": grammar, **fields})


def engine(loaded, storage=StorageKind.PAGED, checker=check, **settings) -> Driver:
    """Grammars are checked in this process, which is as good and much faster; `checker` stands in for that."""
    driver = Driver(loaded, storage, **settings)
    compiler = GrammarCompiler(loaded.tokenizer, loaded.plan.config.vocab_size, checker)
    driver.core.grammars = GrammarQueue(compiler)
    return driver


def alone(loaded, prompt, params, storage=StorageKind.DENSE, seed=0, choice=0) -> Outcome:
    driver = engine(loaded, storage, max_num_seqs=1, prefix_cache=False)
    driver.add("alone", prompt, params, seed, choice)
    return driver.run()["alone"]


def assert_same(got: Outcome, expected: Outcome) -> None:
    assert (got.token_ids, got.text, got.finish_reason) == (expected.token_ids, expected.text, expected.finish_reason)
    for ours, theirs in zip(got.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
def test_an_answer_matches_its_grammar_and_stops_at_its_end(load, storage):
    driver = engine(load(), storage, max_num_seqs=4)
    grammars = {
        "schema": SCHEMA,
        "regex": GrammarSpec.regex(r"\d{3}-\d{4}"),
        "choice": GrammarSpec.choice(['"quoted"', "naïve", "line\nfeed"]),
        "lark": GrammarSpec.grammar('start: "a" B "c"\nB: /b{2,5}/'),
        "gbnf": GrammarSpec.grammar('root ::= "x" [0-9]{2} "y"'),
    }
    for seed, (name, grammar) in enumerate(grammars.items()):
        driver.add(name, prompt_of(7, seed), held_to(grammar, max_tokens=200), seed)
    texts = {}
    for name, outcome in driver.run().items():
        assert (outcome.finish_reason, outcome.error) == ("stop", None), name
        texts[name] = outcome.text
    found = json.loads(texts["schema"])
    assert found.keys() == {"name", "size", "tags"} and 0 <= found["size"] <= 99
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", texts["regex"])
    assert texts["choice"] in ('"quoted"', "naïve", "line\nfeed")
    assert re.fullmatch("ab{2,5}c", texts["lark"]) and re.fullmatch("x[0-9]{2}y", texts["gbnf"])
    driver.assert_idle()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_company_and_storage_change_no_bit_of_an_answer_held_to_a_grammar(load, temperature):
    loaded = load()
    driver = engine(loaded, max_num_seqs=4, max_batch_tokens=48, prefill_chunk=16)
    asked = [(SCHEMA, 17), (None, 30), (WORDS, 1), (SCHEMA, 40), (WORDS, 23), (None, 5)]
    for seed, (grammar, length) in enumerate(asked):
        driver.add(str(seed), prompt_of(length, seed), held_to(grammar, temperature=temperature), seed)
    outcomes = driver.run()
    for seed, (grammar, length) in enumerate(asked):
        params = held_to(grammar, temperature=temperature)
        for storage in STORAGES:
            assert_same(outcomes[str(seed)], alone(loaded, prompt_of(length, seed), params, storage, seed))


def test_a_preempted_request_goes_on_where_its_grammar_was(load):
    loaded = load()
    driver = engine(loaded, max_num_seqs=2)
    driver.add("a", prompt_of(9), held_to(SCHEMA), seed=3)
    for step in range(200):
        driver.step()
        live = driver.core._live.get("a")
        if live is None:
            break
        if step % 5 == 4 and live.state.slot is not None and live.output.token_ids:
            driver.core.preempt("a")
    assert driver.core.preemptions >= 2
    assert_same(driver.outcomes["a"], alone(loaded, prompt_of(9), held_to(SCHEMA), seed=3))


def test_each_choice_follows_the_grammar_by_itself(load):
    loaded = load()
    driver = engine(loaded, max_num_seqs=4)
    for choice in range(4):
        driver.add(str(choice), prompt_of(9), held_to(WORDS), 7, choice)
    texts = [outcome.text for outcome in driver.run().values()]
    assert len(set(texts)) == 4
    for choice, text in enumerate(texts):
        assert re.fullmatch("[a-z]{3,9}( [a-z]{3,9}){1,2}", text)
        assert text == alone(loaded, prompt_of(9), held_to(WORDS), seed=7, choice=choice).text


def test_an_answer_that_is_cut_says_length_and_never_stop(load):
    whole = alone(load(), prompt_of(5), held_to(SCHEMA), seed=1)
    assert whole.finish_reason == "stop"
    for most in range(1, len(whole.token_ids)):
        cut = alone(load(), prompt_of(5), held_to(SCHEMA, max_tokens=most), seed=1)
        assert (cut.finish_reason, cut.token_ids) == ("length", whole.token_ids[:most])


def test_log_probabilities_are_those_of_the_model_without_the_grammar(load):
    loaded = load()
    driver = engine(loaded, max_num_seqs=1)
    driver.add("a", prompt_of(5), held_to(GrammarSpec.choice(["zq"]), logprobs=1), seed=1)
    told = []
    while driver.core.has_work:
        told += [event.logprobs for event in driver.step() if event.logprobs is not None]
    for logits, entry in zip(driver.outcomes["a"].logits, told, strict=True):
        expected = logits.log_softmax(0)
        assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-4)
        assert entry.top[0][0] == int(expected.argmax())
    assert any(entry.top[0][0] != entry.token_id for entry in told), "the grammar changed nothing"


def test_bias_and_filters_hold_among_the_tokens_that_are_allowed(load):
    loaded = load()
    [a] = loaded.tokenizer.encode("a", add_special_tokens=False)
    letters = GrammarSpec.regex("[a-f]{12}")
    biased = alone(loaded, prompt_of(5), held_to(letters, logit_bias={a: 100.0}), seed=1)
    assert biased.text == "a" * 12
    assert re.fullmatch("[a-f]{12}", alone(loaded, prompt_of(5), held_to(letters, top_k=1, min_p=0.5), seed=1).text)


def test_a_request_waits_for_its_grammar_while_others_run_and_may_be_aborted(load):
    loaded = load()
    ready = threading.Event()

    def slow(spec: GrammarSpec) -> str:
        assert ready.wait(30)
        return check(spec)

    driver = engine(loaded, checker=slow, max_num_seqs=4)
    driver.add("free", prompt_of(5), SamplingParams(max_tokens=5))
    driver.add("held", prompt_of(6), held_to(WORDS), seed=2)
    driver.add("left", prompt_of(7), held_to(WORDS), seed=3)
    assert driver.core.num_waiting == 3 and driver.core.queue_by_priority == {0: 3}
    while driver.outcomes["free"].finish_reason is None:
        driver.step()
    assert driver.core.has_work and driver.core.num_running == 0 and driver.core.num_waiting == 2
    driver.core.abort("left")
    assert driver.step() == [] and driver.core.num_waiting == 1
    ready.set()
    outcomes = driver.run()
    assert_same(outcomes["held"], alone(loaded, prompt_of(6), held_to(WORDS), seed=2))
    assert outcomes["left"].finish_reason is None
    driver.assert_idle()


def test_a_grammar_whose_requests_have_all_left_before_its_turn_holds_up_nobody(load):
    loaded = load()
    ready, checked = threading.Event(), []

    def slow(spec: GrammarSpec) -> str:
        checked.append(spec.text)
        assert ready.wait(30)
        return check(spec)

    driver = engine(loaded, checker=slow, max_num_seqs=4)
    for name in ("a", "b", "c", "d", "e"):  # more than there are workers
        driver.add(name, prompt_of(5), held_to(GrammarSpec.regex(name)))
    driver.add("e too", prompt_of(5), held_to(GrammarSpec.regex("e")))
    for name in ("c", "d", "e"):
        driver.core.abort(name)
    driver.add("d again", prompt_of(5), held_to(GrammarSpec.regex("d")))
    ready.set()
    outcomes = driver.run()
    assert sorted(checked) == ["a", "b", "d", "e"]
    assert {name: outcome.text for name, outcome in outcomes.items() if outcome.finish_reason} == {
        "a": "a", "b": "b", "d again": "d", "e too": "e",
    }  # fmt: skip
    driver.assert_idle()


def test_a_request_that_waits_for_its_grammar_too_long_times_out(load):
    stuck = threading.Event()

    def never(spec: GrammarSpec) -> str:
        assert stuck.wait(30)
        return check(spec)

    driver = engine(load(), checker=never)
    driver.core.add(Request("a", prompt_of(5), held_to(WORDS), 0, queue_timeout_s=0.01))
    [event] = driver.core.expire(time.perf_counter() + 1)
    assert event.fault == "queue_timeout" and not driver.core.has_work
    stuck.set()


def test_a_bad_grammar_ends_its_own_request_with_the_reason_and_is_refused_at_once_later(load):
    asked = threading.Event()

    def when_asked(spec: GrammarSpec) -> str:
        assert asked.wait(30)
        return check(spec)

    driver = engine(load(), checker=when_asked, max_num_seqs=4)
    driver.add("good", prompt_of(5), held_to(WORDS), seed=2)
    driver.add("bad", prompt_of(5), held_to(GrammarSpec.regex("a(b")))
    asked.set()
    faults = {}
    while driver.core.has_work:
        faults |= {event.delta.request_id: event.fault for event in driver.step() if event.fault is not None}
    assert faults == {"bad": "invalid_grammar"}
    assert driver.outcomes["bad"].error == (
        "the regex is not a regular expression that can be used at character 2: unclosed group"
    )
    assert driver.outcomes["good"].finish_reason == "stop"
    with pytest.raises(InvalidGrammar, match="unclosed group"):
        driver.add("again", prompt_of(5), held_to(GrammarSpec.regex("a(b")))
    driver.assert_idle()


def test_an_error_of_the_compiler_itself_is_a_fault_of_that_request_and_tried_anew(load):
    calls = []

    def broken(spec: GrammarSpec) -> str:
        calls.append(spec)
        raise ZeroDivisionError("nobody foresaw this")

    driver = engine(load(), checker=broken)
    for name in ("a", "b"):
        driver.add(name, prompt_of(5), held_to(WORDS))
        [event] = [event for _ in range(1000) for event in driver.step()][:1]
        assert event.fault == "fault" and "nobody foresaw this" in (event.error or "")
    assert len(calls) == 2 and not driver.core.has_work


def test_a_matcher_that_fails_ends_its_request_alone(load):
    driver = engine(load(), max_num_seqs=2)
    driver.add("fails", prompt_of(5), held_to(SCHEMA), seed=1)
    driver.add("goes on", prompt_of(5), held_to(WORDS), seed=2)
    while not driver.outcomes["fails"].token_ids:
        driver.step()
    grammar = driver.core._live["fails"].grammar
    assert grammar is not None
    grammar.fail("ParserTooComplex", "too complex")
    outcomes = driver.run()
    assert outcomes["fails"].finish_reason == "error" and "ParserTooComplex" in (outcomes["fails"].error or "")
    assert_same(outcomes["goes on"], alone(load(), prompt_of(5), held_to(WORDS), seed=2))
    driver.assert_idle()


def test_a_step_that_failed_is_done_again_with_the_same_masks(load):
    loaded = load()
    driver = engine(loaded, max_num_seqs=2)
    driver.add("a", prompt_of(5), held_to(SCHEMA), seed=1)
    driver.add("b", prompt_of(6), held_to(WORDS), seed=2)
    forward, count = driver.core.runner.forward, 0

    def flaky(batch):
        nonlocal count
        count += 1
        if count % 4 == 0 and len(batch.rows) > 1:
            raise RuntimeError("the device stumbled")
        return forward(batch)

    driver.core.runner.forward = flaky  # type: ignore[method-assign]
    outcomes = driver.run()
    assert count > 8
    for seed, (name, grammar) in enumerate({"a": SCHEMA, "b": WORDS}.items(), 1):
        assert outcomes[name].token_ids == alone(loaded, prompt_of(4 + seed), held_to(grammar), seed=seed).token_ids


def test_contradictions_are_refused():
    for fields in ({"ignore_eos": True}, {"max_tokens": 0, "prompt_logprobs": 0}):
        with pytest.raises(InvalidRequest, match="with a grammar"):
            held_to(WORDS, **fields)
    with pytest.raises(InvalidRequest, match="grammar must be a GrammarSpec"):
        held_to("[a-z]")  # type: ignore[arg-type]


@pytest.mark.parametrize("second", [held_to(WORDS), SamplingParams(max_tokens=5)], ids=["grammar", "plain"])
def test_an_id_is_in_use_while_its_grammar_is_compiled(load, second):
    driver = engine(load(), max_num_seqs=2)
    driver.add("a", prompt_of(5), held_to(WORDS))
    assert len(driver.core.grammars) == 1
    with pytest.raises(InvalidRequest, match="request id 'a' is in use"):
        driver.add("a", prompt_of(7), second)
    driver.run()
    assert_same(driver.outcomes["a"], alone(load(), prompt_of(5), held_to(WORDS)))
    driver.assert_idle()
