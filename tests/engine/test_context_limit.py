"""At the context limit a request ends, or forgets the older half of what it holds and goes on."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.refusals import InvalidArgument
from octavo.config import EngineConfig
from octavo.errors import InvalidRequest
from octavo.sampling_params import SamplingParams
from tests.engine.tiny_engines import Driver, open_model, prompt_of
from tests.tiny_models import save_hf, save_tokenizer

CONTEXT = 64
LONG = SamplingParams(max_tokens=150, ignore_eos=True)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def loaded(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save_hf(path, request.param)
    save_tokenizer(path)
    return open_model(path)


def shifting(loaded, **settings):
    return Driver(loaded, max_context=CONTEXT, context_limit_policy="shift", **{"keep": 16, **settings})


def test_stop_ends_with_length_when_the_context_is_full(loaded):
    driver = Driver(loaded, max_context=CONTEXT)
    driver.add("a", prompt_of(40), LONG)
    outcome = driver.run()["a"]
    assert (len(outcome.token_ids), outcome.finish_reason) == (CONTEXT - 40, "length")
    driver.assert_idle()


@pytest.mark.parametrize("keep", [0, 16, 32])
def test_shift_goes_on_to_the_tokens_that_were_asked_for(loaded, keep):
    driver = shifting(loaded, keep=keep)
    driver.add("a", prompt_of(40), LONG)
    outcome = driver.run()["a"]
    assert (len(outcome.token_ids), outcome.finish_reason) == (150, "length")
    assert all(logits.isfinite().all() for logits in outcome.logits)
    stopped = Driver(loaded, max_context=CONTEXT)
    stopped.add("a", prompt_of(40), LONG)
    assert outcome.token_ids[: CONTEXT - 40] == stopped.run()["a"].token_ids
    driver.assert_idle()


def test_a_shifted_request_has_the_same_bits_alone_batched_and_with_shared_beginnings(loaded):
    prompts = {"a": prompt_of(40), "b": (*prompt_of(40)[:32], *prompt_of(9, seed=1)), "c": prompt_of(7)}
    expected = {}
    for name, prompt in prompts.items():
        driver = shifting(loaded, prefix_cache=False)
        driver.add(name, prompt, LONG)
        expected[name] = driver.run()[name]
    driver = shifting(loaded, max_num_seqs=8, max_batch_tokens=20, prefill_chunk=11)
    for copy in range(2):
        for name, prompt in prompts.items():
            driver.add(f"{name}{copy}", prompt, LONG)
        driver.step()
    for name, outcome in driver.run().items():
        assert outcome.token_ids == expected[name[0]].token_ids
        assert torch.equal(torch.stack(outcome.logits), torch.stack(expected[name[0]].logits))
    assert driver.core.pool.prefix.counters.hits > 0
    driver.assert_idle()


def test_without_a_number_of_tokens_a_request_goes_on_to_its_end(loaded):
    driver = shifting(loaded)
    driver.add("a", prompt_of(40), SamplingParams(ignore_eos=True))
    for _ in range(200):
        driver.step()
    assert len(driver.outcomes["a"].token_ids) == 200
    with pytest.raises(InvalidArgument, match="has forgotten tokens"):
        driver.core.preempt("a")
    driver.core.abort("a")
    driver.assert_idle()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context_limit_policy": "wrap"}, "'wrap'.*stop, shift"),
        ({"keep": 16}, "add context limit policy shift"),
        ({"context_limit_policy": "shift", "keep": 17}, "17 .*16.*give 32"),
        ({"context_limit_policy": "shift", "keep": -1}, "-1"),
        ({"context_limit_policy": "shift", "storage": "dense"}, "paged"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InvalidRequest, match=message):
        EngineConfig(**settings)


def test_more_to_keep_than_the_context_leaves_room_for_is_refused(loaded):
    shifting(loaded, keep=32)
    with pytest.raises(InvalidRequest, match=r"keep is 48 and the context 64.*at most 32"):
        shifting(loaded, keep=48)


def test_keys_that_cannot_be_rotated_are_refused_at_start_up(tmp_path):
    from octavo.engine.core import EngineCore
    from octavo.engine.loaded_model import load_model, plan_model

    save_hf(tmp_path, "llama")
    save_tokenizer(tmp_path)
    config = EngineConfig(context_limit_policy="shift", kv_dtype="q8_0", threads=1)
    with pytest.raises(InvalidRequest, match="q8_0 for k cannot be shifted"):
        EngineCore(load_model(plan_model(tmp_path, config), config), config)
