"""Dense requests that begin with cached blocks and restored rings: the bits of those that compute all themselves."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import share_weights
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.combinations import by_day
from tests.engine.broken_steps import fail_once, run_through
from tests.engine.tiny_engines import GREEDY_12, Driver, alone, prompt_of
from tests.tiny_models import EOS_TOKEN_ID

DENSE = StorageKind.DENSE
WINDOWED = ["gemma3", "gemma3-window-5", "mistral-window-5", "mistral-window-16"]
CASES = ["llama", "llama-q4_0", *WINDOWED]
UNTIL_END = SamplingParams(logit_bias={EOS_TOKEN_ID: 1e4})  # at once, and yet it claims the whole context
HEAVY = SamplingParams(max_tokens=40, ignore_eos=True)


def counted(driver, request_id, prompt, params=GREEDY_12):
    """Run one request to its end; what it took from the cache, as its first event says, and what it got."""
    driver.add(request_id, prompt, params)
    told = []
    while driver.core.has_work:
        told += [event.num_cached_tokens for event in driver.step()]
    assert told[0] is not None
    assert told[1:] == [None] * (len(told) - 1), "only the first event tells"
    return told[0], driver.outcomes[request_id]


def assert_same(outcome, expected):
    assert outcome.token_ids == expected.token_ids
    assert torch.equal(torch.stack(outcome.logits), torch.stack(expected.logits))


@pytest.mark.parametrize("chunk", [16, 40, 512])
@pytest.mark.parametrize("case", CASES)
def test_a_prompt_sent_again_and_the_next_turn_begin_with_what_was_computed(load, case, chunk):
    loaded = load(case)
    driver = Driver(loaded, DENSE, max_num_seqs=2, prefill_chunk=chunk)
    prompt = prompt_of(150)
    cached, first = counted(driver, "first", prompt)
    assert cached == 0
    cached, again = counted(driver, "again", prompt)
    assert cached == 144
    turn = (*prompt, *first.token_ids, *prompt_of(30, seed=1))
    cached, next_turn = counted(driver, "turn", turn)
    assert cached == (144 if case in WINDOWED else 160)
    for outcome in (first, again):
        assert_same(outcome, alone(loaded, prompt))
    assert_same(next_turn, alone(loaded, turn))
    driver.assert_idle()


@pytest.mark.parametrize("case", ["llama", "gemma3", "mistral-window-5"])
def test_a_conversation_hits_at_every_turn_in_a_pool_for_just_one_sequence(load, case):
    """Every request claims the whole context, so there is one run, and it begins where the last one did."""
    loaded = load(case)
    config = EngineConfig(max_num_seqs=1, max_context=384, threads=1)
    llm = LLM.over(EngineCore(share_weights(loaded, config, StorageDecision(DENSE, "test")), config))
    assert llm.core.ledger.max_context == 384
    prompt, cached = list(prompt_of(90)), []
    for turn in range(3):
        found = llm.generate([prompt], UNTIL_END)[0]
        cached.append(found.usage.cached_tokens)
        prompt += [*found.outputs[0].token_ids, *prompt_of(60, seed=turn)]
    assert cached[0] == 0 < cached[1] < cached[2]
    assert cached[1] >= 80


@pytest.mark.parametrize("case", ["llama", "gemma3", "mistral-window-16"])
def test_requests_that_share_a_prompt_with_one_that_runs_get_copies(load, case):
    loaded = load(case)
    driver = Driver(loaded, DENSE, max_num_seqs=3, max_context=200)
    prompt = prompt_of(100)
    driver.add("first", prompt, HEAVY)
    for _ in range(4):
        driver.step()
    driver.add("second", prompt, HEAVY)
    driver.add("third", (*prompt, *prompt_of(20, seed=2)), HEAVY)
    told = {}
    while driver.core.has_work:
        for event in driver.step():
            if event.num_cached_tokens is not None:
                told[event.delta.request_id] = event.num_cached_tokens
    assert told == {"second": 96, "third": 96}
    for request_id, each in (("first", prompt), ("second", prompt), ("third", (*prompt, *prompt_of(20, seed=2)))):
        assert_same(driver.outcomes[request_id], alone(loaded, each, HEAVY))
    driver.assert_idle()


@pytest.mark.parametrize(
    ("case", "part", "failing"),
    by_day(("llama", "gemma3", "mistral-window-5"), ("runner.forward", "_steps._sampler.draw"), tuple(range(5))),
)
def test_a_step_that_fails_after_a_ring_was_restored_is_made_up_for(load, case, part, failing, monkeypatch):
    loaded = load(case)
    driver = Driver(loaded, DENSE, max_num_seqs=2, prefill_chunk=24)
    prompt = prompt_of(100)
    counted(driver, "first", prompt)
    turns = {"again": prompt, "longer": (*prompt, *prompt_of(50, seed=3))}
    for request_id, each in turns.items():
        driver.add(request_id, each)
    fail_once(monkeypatch, driver.core, part, failing)
    assert run_through(driver) == 1
    assert driver.core.pool.prefix.counters.hits >= 2
    for request_id, each in turns.items():
        assert driver.outcomes[request_id].token_ids == alone(loaded, each).token_ids
    driver.assert_idle()


@pytest.mark.parametrize("case", ["llama", "gemma3", "mistral-window-5"])
def test_a_preempted_request_goes_on_from_its_prompt(load, case):
    loaded = load(case)
    driver = Driver(loaded, DENSE, max_num_seqs=1)
    prompt = prompt_of(100)
    driver.add("a", prompt, HEAVY)
    for _ in range(20):
        driver.step()
    before = driver.core.pool.prefix.counters.hit_tokens
    driver.core.preempt("a")
    outcome = driver.run()["a"]
    assert driver.core.pool.prefix.counters.hit_tokens - before >= 96
    assert outcome.token_ids == alone(loaded, prompt, HEAVY).token_ids
    driver.assert_idle()


@pytest.mark.parametrize("case", ["gemma3", "mistral-window-16"])
def test_snapshots_never_take_more_than_the_ledger_says(load, case):
    driver = Driver(load(case), DENSE, max_num_seqs=4)
    limit = driver.core.ledger.snapshot_bytes
    prefix = driver.core.pool.prefix
    for seed in range(6):
        cached, _ = counted(driver, f"{seed}", prompt_of(100, seed))
        assert cached == 0
        assert 0 < prefix.num_snapshot_bytes <= limit
    assert counted(driver, "newest", prompt_of(100, 5))[0] == 96
    assert counted(driver, "oldest", prompt_of(100, 0))[0] == 0
    driver.assert_idle()


def test_prompts_too_short_for_a_snapshot_are_prefilled_whole(load):
    driver = Driver(load("gemma3"), DENSE)
    driver.add("short", prompt_of(64))
    driver.add("long", prompt_of(65))
    assert [event.delta.request_id for event in driver.step()] == ["short"]
    assert [event.delta.request_id for event in driver.step()] == ["short", "long"]


def test_salts_and_a_cache_that_is_off_share_nothing(load):
    driver = Driver(load("gemma3"), DENSE, prefix_cache=False)
    for name in ("a", "b"):
        assert counted(driver, name, prompt_of(100))[0] == 0
    assert driver.core.ledger.snapshot_bytes == 0
