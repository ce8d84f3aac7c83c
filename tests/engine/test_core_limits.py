"""Limits: the context, the pool, the vocabulary. Each refusal names the value, the limit and what would fit."""

from __future__ import annotations

import pytest

from octavo.errors import CapacityError, InvalidRequest
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import GREEDY_12, STORAGES, Driver, alone, prompt_of
from tests.tiny_models import VOCAB_SIZE

ENDLESS = SamplingParams(ignore_eos=True)
both_storages = pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)


@both_storages
@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_reaching_the_context_limit_ends_with_length(load, storage, case, max_tokens):  # requirement A7
    driver = Driver(load(case), storage, max_context=70)
    driver.add("a", prompt_of(40), SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    driver.add("b", prompt_of(40), GREEDY_12)
    outcome = driver.run()["a"]
    assert (len(outcome.token_ids), outcome.finish_reason) == (30, "length")
    assert driver.outcomes["b"].token_ids == outcome.token_ids[:12]
    driver.assert_idle()


@both_storages
@pytest.mark.parametrize("limit", [17, 64, 100])
def test_the_longest_prompt_leaves_room_for_one_token_and_a_longer_one_is_refused(load, storage, limit):
    driver = Driver(load(), storage, max_context=limit)
    driver.add("longest", prompt_of(limit - 1), ENDLESS)
    outcome = driver.run()["longest"]
    assert (len(outcome.token_ids), outcome.finish_reason) == (1, "length")
    for length in (limit, limit + 1, 10 * limit):
        with pytest.raises(InvalidRequest, match=rf"{length} tokens.* {limit}.*at most {limit - 1} or raise.*512"):
            driver.add("longer", prompt_of(length), ENDLESS)
    driver.assert_idle()


def test_at_the_models_own_limit_there_is_nothing_to_raise(load):
    driver = Driver(load())
    with pytest.raises(InvalidRequest, match=r"at most 511$"):
        driver.add("a", prompt_of(512), ENDLESS)


@both_storages
def test_a_prompt_longer_than_the_pool_is_refused_with_the_largest_length_that_fits(load, storage):
    driver = Driver(load(), storage, num_kv_blocks=4)
    with pytest.raises(CapacityError, match=r"64 tokens; the K/V memory holds 64 .*at most 63"):
        driver.add("a", prompt_of(64), ENDLESS)
    driver.add("a", prompt_of(63), ENDLESS)
    assert driver.run()["a"].finish_reason == "length"
    driver.assert_idle()


@both_storages
def test_a_pool_for_one_at_a_time_serves_all_one_after_the_other(load, storage):
    loaded = load()
    driver = Driver(loaded, storage, num_kv_blocks=4, max_num_seqs=8)
    for i in range(5):
        driver.add(str(i), prompt_of(40, i))
    peak = 0
    while driver.core.has_work:
        driver.step()
        peak = max(peak, driver.core.pool.num_seqs)
    assert peak == 1
    for i in range(5):
        assert driver.outcomes[str(i)].token_ids == alone(loaded, prompt_of(40, i)).token_ids
    driver.assert_idle()


@pytest.mark.parametrize(
    ("prompt", "params", "said"),
    [
        ((), GREEDY_12, "0 tokens"),
        ((5, -3, 7), GREEDY_12, f"-3.*0 to {VOCAB_SIZE - 1}"),
        ((5, VOCAB_SIZE), GREEDY_12, f"{VOCAB_SIZE}.*0 to {VOCAB_SIZE - 1}"),
        ((5,), SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), f"logit_bias.*{VOCAB_SIZE}"),
        ((5,), SamplingParams(stop_token_ids=[VOCAB_SIZE]), f"stop_token_ids.*{VOCAB_SIZE}"),
    ],
    ids=["no tokens", "negative", "beyond", "bias beyond", "stop id beyond"],
)
def test_a_refused_request_queues_nothing_and_the_next_one_works(load, prompt, params, said):
    driver = Driver(load())
    with pytest.raises(InvalidRequest, match=said) as caught:
        driver.add("bad", prompt, params)
    assert "\n" not in str(caught.value)
    assert not driver.core.has_work
    driver.add("good", (VOCAB_SIZE - 1, 0))
    assert len(driver.run()["good"].token_ids) == 12
    driver.assert_idle()


def test_a_step_without_work_does_nothing(load):
    driver = Driver(load())
    assert driver.core.step() == []
    driver.assert_idle()


def test_a_request_never_holds_more_than_its_own_length(load):
    driver = Driver(load(), StorageKind.PAGED, max_num_seqs=1)
    driver.add("a", prompt_of(20), GREEDY_12)
    held = set()
    while driver.core.has_work:
        driver.step()
        held.add(driver.at_start[0] - driver.core.pool.num_free_blocks[0])
    assert held == {0, 2}  # 32 tokens at most, then none
