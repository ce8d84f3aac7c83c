"""At the context limit a request ends, or forgets the older half of what it holds and goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo.cache.refusals import InvalidArgument
from octavo.config import EngineConfig
from octavo.engine.loaded_model import plan_model
from octavo.errors import InvalidRequest
from octavo.models.llama import LlamaForCausalLM
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


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    save_hf(path, "llama")
    return path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_dtype": "q8_0"}, "q8_0 for k cannot be shifted"),
        ({"kv_dtype": "k=turbo4,v=f16"}, "turbo4 for k cannot be shifted"),
        ({"max_context": 64, "keep": 48}, r"keep is 48 and the context 64.*at most 32"),
        ({"keep": 512}, r"keep is 512 and the context 512.*at most 480"),
        ({"num_kv_blocks": 4, "keep": 48}, r"keep is 48 and the context 64.*at most 32"),
    ],
)
def test_a_shift_that_cannot_be_is_refused_before_weights_are_loaded(path, settings, message):
    plan_model(path, EngineConfig(context_limit_policy="shift", threads=1, kv_dtype="k=f16,v=q8_0"))
    with pytest.raises(InvalidRequest, match=message):
        plan_model(path, EngineConfig(context_limit_policy="shift", threads=1, **settings))


@pytest.mark.parametrize("kind", ["chunked", "latent", "recurrent"])
def test_a_layer_that_cannot_be_shifted_is_named_before_weights_are_loaded(path, monkeypatch, kind):
    full = LlamaForCausalLM.kv_layout(plan_model(path, EngineConfig(threads=1)).config)
    window = 16 if kind == "chunked" else None
    other = replace(full[1], kind=kind, window=window, num_kv_heads=1)
    monkeypatch.setattr(LlamaForCausalLM, "kv_layout", staticmethod(lambda config: [full[0], other, *full[2:]]))
    with pytest.raises(InvalidRequest, match=f"layer 1 of model type llama is {kind}, .* context limit policy stop"):
        plan_model(path, EngineConfig(context_limit_policy="shift", threads=1))


def test_a_family_without_paged_storage_cannot_shift(path, monkeypatch):
    monkeypatch.setattr(LlamaForCausalLM, "supports_paged", False)
    with pytest.raises(InvalidRequest, match=r"model type llama has no paged storage, .* context limit policy stop"):
        plan_model(path, EngineConfig(context_limit_policy="shift", threads=1))
