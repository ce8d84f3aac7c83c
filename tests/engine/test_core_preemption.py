"""A pool too small for all: requests give way and come back, and each gets, bit for bit, what it gets alone."""

from __future__ import annotations

import pytest
import torch

from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import Driver, Outcome, alone, prompt_of

LONG = SamplingParams(max_tokens=60, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=60, temperature=1.0, top_k=40, ignore_eos=True, presence_penalty=0.5)


nightly = pytest.mark.nightly


@pytest.mark.parametrize(
    ("case", "params"),
    [
        pytest.param("llama", SEEDED, id="llama-seeded"),
        pytest.param("gemma3", LONG, id="gemma3-greedy"),
        pytest.param("mistral-window-16", SEEDED, id="mistral-window-16-seeded"),
        pytest.param("llama", LONG, id="llama-greedy", marks=nightly),
        pytest.param("gemma3", SEEDED, id="gemma3-seeded", marks=nightly),
        pytest.param("mistral-window-16", LONG, id="mistral-window-16-greedy", marks=nightly),
    ],
)
def test_preempted_requests_get_the_very_logits_they_get_alone_and_stream_nothing_twice(load, case, params):
    loaded = load(case)
    settings = {} if case == "mistral-window-16" else {"num_kv_blocks": 12}
    driver = Driver(loaded, StorageKind.PAGED, max_context=128, max_num_seqs=6, prefill_chunk=16, **settings)
    lengths = {f"{i}": 5 + 7 * i for i in range(8)}
    for seed, (name, length) in enumerate(lengths.items()):
        driver.add(name, prompt_of(length, seed), params, seed)
    ticks = 0
    while driver.core.has_work:
        ticks += 1
        if case == "mistral-window-16" and ticks % 7 == 0:
            running = [n for n, live in driver.core._live.items() if live.state.slot is not None]
            driver.core.preempt(running[ticks % len(running)])
        driver.step()
        assert min(driver.core.pool.available_blocks()) >= 0
    assert driver.core.preemptions >= 3
    assert driver.core.pool.prefix.counters.hits >= 1, "they resume from what was cached"
    for seed, (name, length) in enumerate(lengths.items()):
        expected = alone(loaded, prompt_of(length, seed), params, seed=seed)
        outcome = driver.outcomes[name]
        assert (outcome.token_ids, outcome.text) == (expected.token_ids, expected.text)
        for ours, theirs in zip(outcome.logits, expected.logits, strict=True):
            assert torch.equal(ours, theirs)
    driver.assert_idle()


def test_without_max_tokens_as_many_run_as_there_are_blocks_for_their_prompts(load):
    driver = Driver(load(), StorageKind.PAGED, max_context=512, num_kv_blocks=40, max_num_seqs=8)
    for i in range(8):
        driver.add(str(i), prompt_of(20, i), SamplingParams(ignore_eos=True))
    driver.step()
    assert driver.core.num_running == 8


def test_the_highest_priority_is_served_first_and_is_never_the_one_to_give_way(load):
    driver = Driver(load(), StorageKind.PAGED, max_context=128, num_kv_blocks=9, max_num_seqs=4)
    for name, priority in (("low", 5), ("high", -1), ("middle", 0)):
        driver.core.add(Request(name, prompt_of(10, priority), LONG, 0, priority=priority))
        driver.outcomes[name] = Outcome()
    assert driver.core.queue_by_priority == {5: 1, -1: 1, 0: 1}
    ended = []
    while driver.core.has_work:
        ended += [event.delta.request_id for event in driver.step() if event.delta.finish_reason]
    assert driver.core.preemptions > 0
    assert ended == ["high", "middle", "low"]


def test_identical_prompts_that_arrive_together_are_computed_once(load):
    loaded = load()
    driver = Driver(loaded, StorageKind.PAGED, max_num_seqs=8, prefill_chunk=64)
    for choice in range(4):
        driver.add(str(choice), prompt_of(100), SEEDED, 3, choice)
    driver.run()
    counters = driver.core.pool.prefix.counters
    assert (counters.hits, counters.hit_tokens) == (3, 3 * 96)
    for choice in range(4):
        expected = alone(loaded, prompt_of(100), SEEDED, seed=3, choice=choice)
        assert driver.outcomes[str(choice)].token_ids == expected.token_ids


def test_requests_that_may_shift_keep_all_they_may_need_and_never_give_way(load):
    driver = Driver(
        load(),
        StorageKind.PAGED,
        max_context=64,
        num_kv_blocks=9,
        max_num_seqs=4,
        context_limit_policy="shift",
    )
    for i in range(3):
        driver.add(str(i), prompt_of(20, i), SamplingParams(max_tokens=100, ignore_eos=True))
    driver.step()
    assert driver.core.num_running == 2
    driver.run()
    assert driver.core.preemptions == 0
    assert all(len(outcome.token_ids) == 100 for outcome in driver.outcomes.values())
    driver.assert_idle()
