"""Tokens that a grammar leaves no choice about are taken without a step for each, and nothing else shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo import LLM
from octavo.engine.hand_off import HandOff
from octavo.grammar_spec import GrammarSpec
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from octavo.tokenizer import Tokenizer
from tests.combinations import by_day
from tests.conftest import weights_path
from tests.engine.broken_steps import BrokenOff, fail_once, run_through
from tests.engine.grammar_engines import GrammarDriver, assert_same, held_to, pair, run_both, run_fast
from tests.engine.tiny_engines import STORAGES, Outcome, open_model, prompt_of
from tests.tiny_models import EOS_TOKEN_ID


def closed(**properties: Any) -> dict[str, Any]:
    """An object of just these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


CALL = closed(name={"const": "get_current_weather"}, arguments=closed(unit={"enum": ["celsius", "fahrenheit"]}))
LIST = {
    "type": "array",
    "minItems": 2,
    "maxItems": 3,
    "items": closed(kind={"enum": ["harbour", "lantern"]}, size={"type": "integer", "minimum": 0, "maximum": 99}),
}
NESTED = closed(
    rows={
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    label={"type": "string", "maxLength": 4},
)
GRAMMARS = {
    "call": GrammarSpec.json_schema(CALL),
    "list": GrammarSpec.json_schema(LIST),
    "nested": GrammarSpec.json_schema(NESTED),
    "choice": GrammarSpec.choice(["a careful engineer", "a careful lantern", "naïve"]),
}
CALLED = GRAMMARS["call"]


def as_id(value: Any) -> str | None:
    return value.value if isinstance(value, StorageKind) else None


@pytest.mark.parametrize(
    ("case", "temperature", "storage"),
    by_day(("llama", "gemma3", "gemma3-window-5", "llama-q4_0"), (0.0, 1.0), STORAGES),
    ids=as_id,
)
def test_answers_in_a_batch_are_the_same_to_the_bit_and_take_fewer_steps(load, case, temperature, storage):
    fast, slow = pair(load(case), storage, max_num_seqs=4, max_batch_tokens=48, prefill_chunk=16)
    for driver in (fast, slow):
        for seed, (name, grammar) in enumerate(GRAMMARS.items()):
            driver.add(name, prompt_of(5 + 9 * seed, seed), held_to(grammar, temperature=temperature), seed)
        driver.add("free", prompt_of(30), SamplingParams(max_tokens=40, temperature=temperature), seed=9)
        driver.run()
        driver.assert_idle()
    assert_same(fast, slow)
    assert fast.num_forced >= 20 and slow.num_forced == 0
    assert sum(map(len, fast.sampled.values())) == sum(map(len, slow.sampled.values())) - fast.num_forced
    assert fast.num_steps < slow.num_steps


@pytest.mark.parametrize(("codec", "storage"), by_day(("q8_0", "q4_0", "turbo4"), STORAGES), ids=as_id)
def test_narrow_keys_and_values_are_the_same_to_the_bit(load, codec, storage):
    fast, _ = run_both(load("gemma3-window-5"), held_to(GRAMMARS["list"]), storage, kv_dtype=codec)
    assert fast.num_forced > 0


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("name", GRAMMARS)
def test_alone_each_token_that_is_forced_saves_a_step(load, name, storage):
    for seed in (0, 1) if storage is StorageKind.PAGED else (2,):
        fast, slow = run_both(load(), held_to(GRAMMARS[name]), storage, seed=seed)
        assert fast.num_forced > 0 and fast.num_steps == slow.num_steps - fast.num_forced


def test_answers_streamed_and_whole_with_several_choices_and_their_usage_are_the_same(directory):
    params = held_to(CALLED, n=2, seed=3, stop=('"fahr',))
    answers = []
    for fast_forward in (True, False):
        llm = LLM(directory("llama"), dtype="bfloat16", threads=1, max_context=256, fast_forward=fast_forward)
        [whole] = llm.generate("The harbour", params)
        *pieces, _ = llm.stream("The harbour", replace(params, n=1))
        assert "".join(piece.text for piece in pieces) == whole.outputs[0].text
        assert tuple(i for piece in pieces for i in piece.token_ids) == whole.outputs[0].token_ids
        answers.append((whole.outputs, whole.usage, pieces[-1].finish_reason))
    assert answers[0] == answers[1]


def test_a_step_says_all_the_tokens_of_a_request_in_one_event(load):
    fast, _ = pair(load(), max_num_seqs=1)
    fast.add("a", prompt_of(5), held_to(CALLED))
    events = []
    while fast.core.has_work:
        events += fast.step()
    assert len(events) == fast.num_steps
    assert max(len(event.delta.token_ids) for event in events) > 4
    assert [event.num_cached_tokens is not None for event in events] == [True] + [False] * (len(events) - 1)
    assert [event.delta.finish_reason for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert json.loads("".join(event.delta.text for event in events))["name"] == "get_current_weather"


def test_max_tokens_may_end_in_the_middle_of_what_is_forced(load):
    whole, _ = run_both(load(), held_to(CALLED))
    tokens = whole.outcomes["a"].token_ids
    for most in range(1, len(tokens), 2):
        fast = run_fast(load(), held_to(CALLED, max_tokens=most))
        outcome = fast.outcomes["a"]
        assert (outcome.finish_reason, outcome.token_ids) == ("length", tokens[:most])


def test_the_context_may_end_in_the_middle_of_what_is_forced(load):
    whole, _ = run_both(load(), held_to(CALLED))
    tokens = whole.outcomes["a"].token_ids
    for most in range(1, len(tokens), 3):
        storage = STORAGES[most % 2]
        fast = run_fast(load(), held_to(CALLED, max_tokens=None), storage, max_context=7 + most)
        outcome = fast.outcomes["a"]
        assert (outcome.finish_reason, outcome.token_ids) == ("length", tokens[:most])


@pytest.mark.parametrize("stop", ["current", "_weather", '","', 'e"', "}}"])
def test_a_stop_string_that_forced_tokens_complete_ends_the_answer_there(load, stop):
    fast, _ = run_both(load(), held_to(CALLED, stop=(stop,)))
    outcome = fast.outcomes["a"]
    assert outcome.finish_reason == "stop" and stop not in outcome.text
    assert fast.num_forced > 0


def test_a_stop_token_that_is_forced_ends_the_answer_there(load):
    loaded = load()
    whole, _ = run_both(loaded, held_to(CALLED))
    tokens, sampled = whole.outcomes["a"].token_ids, whole.sampled["a"]
    place = next(i for i in range(10, len(tokens)) if i not in sampled and tokens[i] not in tokens[:i])
    fast, _ = run_both(loaded, held_to(CALLED, stop_token_ids=(tokens[place],)))
    assert fast.outcomes["a"].token_ids == tokens[: place + 1]


def test_an_end_that_is_forced_takes_no_step(load):
    loaded = load()
    ends = loaded.tokenizer.eos_token_ids
    assert len(ends) == 2, "there is a choice of ends"
    one_end = Tokenizer(replace(loaded.tokenizer._parts, eos_token_ids=frozenset({EOS_TOKEN_ID})))
    for tokenizer, is_forced in ((loaded.tokenizer, False), (one_end, True)):
        fast, _ = run_both(replace(loaded, tokenizer=tokenizer), held_to(GrammarSpec.choice(["abc"])))
        outcome = fast.outcomes["a"]
        assert (outcome.text, outcome.finish_reason, len(outcome.token_ids)) == ("abc", "stop", 4)
        assert outcome.token_ids[-1] in ends and (3 in fast.sampled["a"]) is not is_forced


@pytest.mark.parametrize(("case", "context"), by_day(("llama", "gemma3"), (64, 80)))
def test_a_context_is_shifted_at_the_same_token(load, case, context):
    endless = GrammarSpec.json_schema({**LIST, "minItems": 40, "maxItems": 60})
    params = held_to(endless, max_tokens=150)
    fast, slow = run_both(load(case), params, max_context=context, context_limit_policy="shift", keep=16)
    assert len(fast.outcomes["a"].token_ids) == 150 and fast.num_steps < slow.num_steps


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("case", ["llama", "gemma3-window-5"])
def test_one_that_is_preempted_before_its_forced_tokens_are_computed_goes_on_with_them(load, case, storage):
    fast, slow = pair(load(case), storage, max_num_seqs=2)
    for driver in (fast, slow):
        driver.add("a", prompt_of(9), held_to(CALLED), seed=3)
        while driver.core.has_work:
            driver.step()
            live = driver.core._live.get("a")
            if live is None or live.state.slot is None or not live.output.token_ids:
                continue
            if driver is slow or live.state.num_tokens - live.state.num_computed_tokens > 1:
                driver.core.preempt("a")
        driver.assert_idle()
    assert fast.core.preemptions >= 3
    assert_same(fast, slow)


def test_requests_that_run_out_of_blocks_give_way_and_nothing_shows_it(load):
    fast, slow = pair(load(), max_num_seqs=4, num_kv_blocks=14, max_context=192)
    for driver in (fast, slow):
        for seed in range(6):
            driver.add(str(seed), prompt_of(20, seed), held_to(GRAMMARS["list"]), seed)
        driver.run()
        driver.assert_idle()
        assert driver.core.preemptions
    assert_same(fast, slow)


def test_what_is_aborted_with_forced_tokens_to_compute_leaves_nothing(load):
    fast, slow = pair(load(), max_num_seqs=2)
    for driver in (fast, slow):
        driver.add("left", prompt_of(9), held_to(CALLED), seed=3)
        driver.add("stays", prompt_of(12), held_to(CALLED), seed=4)
        left = driver.core._live["left"].state
        while not left.output_token_ids or (driver is fast and left.num_tokens - left.num_computed_tokens < 4):
            driver.step()
        driver.core.abort("left")
        driver.run()
        driver.assert_idle()
        del driver.outcomes["left"]
    assert_same(fast, slow)


@pytest.mark.parametrize("place", range(2, 14, 2))
def test_a_token_of_which_no_text_can_be_made_ends_its_request_alone(load, place):
    fast, slow = pair(load(), max_num_seqs=2)
    for driver in (fast, slow):
        driver.add("a", prompt_of(9), held_to(CALLED), seed=3)
        driver.add("b", prompt_of(12), held_to(CALLED), seed=4)
        detokenizer, count = driver.core._live["a"].output._detokenizer, iter(range(1000))

        def push(token_id: int, push: Callable[[int], str] = detokenizer.push, count=count) -> str:
            if next(count) == place:
                raise ZeroDivisionError("nobody foresaw this")
            return push(token_id)

        detokenizer.push = push  # type: ignore[method-assign]
        driver.run()
        driver.assert_idle()
    assert_same(fast, slow)
    assert fast.outcomes["a"].finish_reason == "error" and len(fast.outcomes["a"].token_ids) == place
    assert fast.outcomes["b"].finish_reason == "stop"


def with_two_lists(loaded, storage, fast_forward: bool) -> GrammarDriver:
    driver = GrammarDriver(loaded, storage, fast_forward=fast_forward, max_num_seqs=2)
    for seed in (1, 2):
        driver.add(str(seed), prompt_of(9 * seed), held_to(GRAMMARS["list"]), seed)
    return driver


@pytest.fixture(scope="module", params=STORAGES, ids=lambda s: s.value)
def undisturbed(request, load) -> tuple[StorageKind, GrammarDriver]:
    """Two lists, a step for each of their tokens, none of which fails."""
    slow = with_two_lists(load("gemma3-window-5"), request.param, fast_forward=False)
    slow.run()
    return request.param, slow


FAILURES = {"runner.forward": BrokenOff, "_steps._sampler.draw": RuntimeError}


@pytest.mark.parametrize(("failing", "part"), by_day(range(2, 7), tuple(FAILURES)))
def test_a_step_of_forced_tokens_that_fails_is_done_again(load, undisturbed, part, failing, monkeypatch):
    (storage, slow), failure = undisturbed, FAILURES[part]
    fast = with_two_lists(load("gemma3-window-5"), storage, fast_forward=True)
    fail_once(monkeypatch, fast.core, part, failing, failure)
    assert run_through(fast) == (failure is BrokenOff)
    fast.assert_idle()
    assert_same(fast, slow)


@pytest.mark.parametrize("budget", [2, 3, 5, 9])
def test_a_small_budget_is_kept_and_changes_nothing(load, budget):
    fast, slow = pair(load(), max_num_seqs=3, max_batch_tokens=budget, prefill_chunk=budget)
    sizes = []
    for driver in (fast, slow):
        for seed in range(4):
            driver.add(str(seed), prompt_of(9 + seed, seed), held_to(GRAMMARS["list"]), seed)
    schedule = fast.core._scheduler.schedule

    def noted():
        step = schedule()
        sizes.append(0 if step is None else step.batch.num_tokens)
        return step

    fast.core._scheduler.schedule = noted  # type: ignore[method-assign]
    fast.run()
    slow.run()
    assert_same(fast, slow)
    assert max(sizes) <= budget


def test_a_long_prompt_that_came_earlier_does_not_hold_up_forced_tokens(load):
    fast, _ = pair(load(), max_num_seqs=2, max_batch_tokens=20, prefill_chunk=16)
    fast.add("compiles", prompt_of(3), held_to(CALLED, max_tokens=1))
    fast.run()
    fast.add("long", prompt_of(400), SamplingParams(max_tokens=3))
    fast.add("held", prompt_of(3, 1), held_to(CALLED))
    steps = 0
    while fast.outcomes["held"].finish_reason is None:
        before = len(fast.outcomes["held"].token_ids)
        fast.step()
        steps += 1
        assert len(fast.outcomes["held"].token_ids) > before, "it was left out"
    assert steps >= 4 and fast.num_forced >= 10 and not fast.outcomes["long"].token_ids


def test_penalties_and_bias_see_forced_tokens_as_they_see_others(load):
    params = held_to(GRAMMARS["list"], repetition_penalty=1.7, presence_penalty=1.0, frequency_penalty=0.5)
    fast, _ = run_both(load(), params)
    assert fast.num_forced > 0
    assert fast.outcomes["a"].token_ids != run_both(load(), held_to(GRAMMARS["list"]))[0].outcomes["a"].token_ids


def test_a_conversation_goes_on_from_cached_forced_tokens(load):
    fast, slow = pair(load(), max_num_seqs=1)
    for driver in (fast, slow):
        driver.add("a", prompt_of(20), held_to(CALLED), seed=1)
        tokens = driver.run()["a"].token_ids
        driver.add("b", (*prompt_of(20), *tokens, *prompt_of(3)), held_to(CALLED), seed=2)
        events = []
        while driver.core.has_work:
            events += driver.step()
        # What was forced at the end was never computed, so at most the last blocks are not there.
        assert (events[0].num_cached_tokens or 0) >= 32
    assert_same(fast, slow)


@pytest.mark.parametrize("fields", [{"logprobs": 0}, {"logprobs": 3}])
def test_whoever_asks_for_log_probabilities_gets_them_of_every_token(load, fields):
    fast, slow = run_both(load(), held_to(CALLED, **fields))
    assert fast.num_forced == 0 and fast.num_steps == slow.num_steps


def test_an_answer_whose_cache_is_asked_for_is_computed_to_its_last_token_but_one(load):
    for driver in pair(load(), max_num_seqs=1):
        driver.core.add(Request("a", prompt_of(9), held_to(CALLED), 1), HandOff(export=True))
        driver.outcomes["a"] = Outcome()
        events = []
        while driver.core.has_work:
            events += driver.core.step()
        tokens = [token_id for event in events for token_id in event.delta.token_ids]
        snapshot = events[-1].snapshot
        assert snapshot is not None and snapshot.num_tokens == 9 + len(tokens) - 1
        assert driver.num_forced == 0


def test_where_sums_may_round_differently_in_company_every_token_has_its_step(load):
    fast, slow = run_both(load("llama", "float32"), held_to(CALLED))
    assert fast.num_forced == 0 and fast.num_steps == slow.num_steps


def test_the_log_probabilities_of_a_prompt_come_with_its_first_event(load):
    fast, slow = pair(load(), max_num_seqs=1)
    scored = []
    for driver in (fast, slow):
        driver.add("a", prompt_of(9), held_to(CALLED, prompt_logprobs=1))
        events = []
        while driver.core.has_work:
            events += driver.step()
        assert [event.prompt_logprobs is not None for event in events] == [True] + [False] * (len(events) - 1)
        scored.append(events[0].prompt_logprobs)
    assert_same(fast, slow)
    assert scored[0] == scored[1] and fast.num_forced > 0


LITERALS = st.text('abcdehot "{}:,', min_size=1, max_size=12)


@st.composite
def lark(draw) -> str:
    """A small grammar: texts that are fixed, and choices between them, some of which repeat or may be absent."""
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        options = " | ".join(json.dumps(each) for each in draw(st.lists(LITERALS, min_size=1, max_size=3)))
        parts.append(f"({options})" + draw(st.sampled_from(["", "", "?", "{1,3}"])))
    return "start: " + " ".join(parts)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    grammar=lark(),
    storage=st.sampled_from(STORAGES),
    case=st.sampled_from(["llama", "gemma3-window-5"]),
    temperature=st.sampled_from([0.0, 1.5]),
    most=st.integers(1, 60),
    stop=st.none() | st.text("abcdehot", min_size=1, max_size=2),
    seed=st.integers(0, 9),
)
def test_any_small_grammar_gives_the_same_either_way(load, grammar, storage, case, temperature, most, stop, seed):
    stops = () if stop is None else (stop,)
    params = held_to(GrammarSpec.grammar(grammar), temperature=temperature, max_tokens=most, stop=stops)
    fast, slow = run_both(load(case), params, storage, length=3 + 5 * seed, seed=seed)
    assert fast.num_steps <= slow.num_steps


@pytest.mark.weights
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.nightly), 1.0])
def test_a_real_model_answers_the_same_in_fewer_steps(temperature):
    loaded = open_model(weights_path("smollm2"))
    fast, slow = pair(loaded, max_num_seqs=2)
    messages = [{"role": "user", "content": "What is the weather in Oslo? Answer by a call, as JSON."}]
    prompt = loaded.tokenizer.encode_chat(messages)
    for driver in (fast, slow):
        for name in ("call", "list"):
            driver.add(name, prompt, held_to(GRAMMARS[name], temperature=temperature), 1)
        driver.run()
    assert_same(fast, slow)
    assert json.loads(fast.outcomes["call"].text)["name"] == "get_current_weather"
    assert fast.num_forced >= 10 and fast.num_steps < slow.num_steps
