"""Vectors of prompts: what they are made of, and the same whatever was cached, chunked, batched or preempted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import LoadedModel, share_weights
from octavo.engine.pooled_prompt import PooledPrompt
from octavo.errors import EngineFault, InvalidRequest
from octavo.llm import LLM
from octavo.request import POOLINGS, Pooling, Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import prompt_of


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def loaded(request: pytest.FixtureRequest, load: Callable[..., LoadedModel]) -> LoadedModel:
    return load(request.param)


def engine(loaded: LoadedModel, storage: StorageKind = StorageKind.PAGED, **settings: Any) -> LLM:
    config = EngineConfig(max_context=512, threads=1, **settings)
    return LLM.over(EngineCore(share_weights(loaded, config, StorageDecision(storage, "the test asks for it")), config))


def vectors(llm: LLM, *prompts: tuple[int, ...], pooling: Pooling) -> list[tuple[float, ...]]:
    return [output.embedding for output in llm.embed(list(prompts), pooling=pooling)]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_is_the_direction_of_the_hidden_states_mean_or_of_the_last_one(
    loaded: LoadedModel, pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, prompt, seen = engine(loaded, prefill_chunk=16), prompt_of(40), []
    forward = llm.core.runner.forward

    def kept(batch: Any) -> torch.Tensor:
        seen.append(forward(batch))
        return seen[-1]

    monkeypatch.setattr(llm.core.runner, "forward", kept)
    [output] = llm.embed([prompt], pooling=pooling)
    hidden = torch.cat(seen).double()
    assert len(hidden) == 40 and len(seen) == 3
    wanted = torch.nn.functional.normalize(hidden.mean(0) if pooling == "mean" else hidden[-1], dim=0)
    assert torch.allclose(torch.tensor(output.embedding, dtype=torch.float64), wanted, atol=1e-6)
    assert output.prompt_token_ids == prompt and math.isclose(math.hypot(*output.embedding), 1.0, rel_tol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_is_bitwise_the_same_alone_batched_chunked_cached_and_in_any_storage(
    loaded: LoadedModel, pooling: Pooling
) -> None:
    prompt = prompt_of(120)
    other, short = prompt[:70] + prompt_of(50, seed=9), prompt_of(3)
    [alone] = vectors(engine(loaded), prompt, pooling=pooling)
    warm = engine(loaded)
    warm.generate([prompt], SamplingParams(max_tokens=4, ignore_eos=True))
    batched = vectors(warm, short, prompt, other, prompt, pooling=pooling)
    assert batched[1] == batched[3] == alone and len({batched[0], batched[2], alone}) == 3
    for settings in ({"prefill_chunk": 7}, {"prefill_chunk": 16}, {"storage": StorageKind.DENSE}):
        assert vectors(engine(loaded, **settings), prompt, pooling=pooling) == [alone]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_prompt_that_fills_the_context_is_embedded(loaded: LoadedModel, pooling: Pooling) -> None:
    prompt = prompt_of(512)
    filled, shorter = vectors(engine(loaded), prompt, prompt[:511], pooling=pooling)
    assert math.isclose(math.hypot(*filled), 1.0, rel_tol=1e-6) and filled != shorter
    [chunked] = vectors(engine(loaded, StorageKind.DENSE, prefill_chunk=48), prompt, pooling=pooling)
    assert chunked == filled


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_prompt_is_embedded_beside_requests_that_generate_and_does_not_change_them(
    loaded: LoadedModel, pooling: Pooling
) -> None:
    prompt, params = prompt_of(50), SamplingParams(max_tokens=12, ignore_eos=True)
    [alone] = vectors(engine(loaded), prompt, pooling=pooling)
    wanted = engine(loaded).generate([prompt_of(20)], params)[0].outputs[0].token_ids
    core = engine(loaded, prefill_chunk=16).core
    core.add(Request("g", prompt_of(20), params, seed=0))
    core.step()
    core.add(Request("e", prompt, SamplingParams(max_tokens=1), seed=0, pooling=pooling))
    events = [event for _ in range(20) for event in core.step()]
    assert [event.embedding for event in events if event.delta.request_id == "e"] == [alone]
    made = [token for event in events if event.delta.request_id == "g" for token in event.delta.token_ids]
    assert tuple(made) == wanted[-len(made) :] and not core.has_work


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_preempted_prompt_is_taken_once(loaded: LoadedModel, pooling: Pooling) -> None:
    prompt = prompt_of(50)
    [alone] = vectors(engine(loaded), prompt, pooling=pooling)
    core = engine(loaded, prefill_chunk=20, prefix_cache=False).core
    core.add(Request("e", prompt, SamplingParams(max_tokens=1), seed=0, pooling=pooling))
    assert core.step() == []
    core.preempt("e")
    assert [event.embedding for _ in range(6) for event in core.step()] == [alone]


def test_the_mean_reads_nothing_from_the_prefix_cache_and_the_last_token_may(loaded: LoadedModel) -> None:
    core = engine(loaded).core
    cached = []
    poolings: tuple[Pooling | None, ...] = (None, "mean", "last")
    for name, pooling in enumerate(poolings):
        core.add(Request(str(name), prompt_of(64), SamplingParams(max_tokens=1), seed=0, pooling=pooling))
        cached += [event.num_cached_tokens for _ in range(3) for event in core.step()]
    assert cached[:2] == [0, 0] and (cached[2] or 0) >= 32


def test_fewer_dimensions_are_the_first_ones_at_length_one(loaded: LoadedModel) -> None:
    llm, prompt = engine(loaded), prompt_of(9)
    whole = torch.tensor(llm.embed(prompt)[0].embedding, dtype=torch.float64)
    short = llm.embed(prompt, dimensions=5)[0].embedding
    assert torch.allclose(torch.tensor(short, dtype=torch.float64), whole[:5] / whole[:5].norm(), atol=1e-7)
    assert llm.embed(prompt, dimensions=len(whole))[0].embedding == tuple(whole.tolist())
    for dimensions in (0, len(whole) + 1):
        with pytest.raises(InvalidRequest, match=f"dimensions is {dimensions}; this model's embeddings have 1 to"):
            llm.embed(prompt, dimensions=dimensions)


def test_what_cannot_be_embedded_is_refused(loaded: LoadedModel) -> None:
    llm = engine(loaded)
    with pytest.raises(InvalidRequest, match="pooling is 'max'; give one of mean, last"):
        llm.embed("x", pooling="max")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="the prompt has 0 tokens"):
        llm.embed([[]])
    with pytest.raises(InvalidRequest, match="shorten it to at most 512"):
        llm.embed([prompt_of(513)])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_hidden_states_that_are_not_numbers_are_a_fault(
    loaded: LoadedModel, pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(loaded)
    forward, logits = llm.core.runner.forward, llm.core.runner.logits
    monkeypatch.setattr(llm.core.runner, "forward", lambda batch: forward(batch) * float("inf"))
    monkeypatch.setattr(llm.core.runner, "logits", lambda hidden: logits(torch.ones_like(hidden)))
    with pytest.raises(EngineFault, match="hidden states of the prompt hold NaN or infinities"):
        llm.embed(prompt_of(4), pooling=pooling)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_no_cut_changes_the_vector_of_the_same_hidden_states(pooling: Pooling) -> None:
    hidden = torch.randn(75, 24, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 75)[:, None]
    whole = PooledPrompt(75, pooling)
    whole.add(hidden, 0)
    for chunk in (1, 5, 16, 17, 64):
        cut = PooledPrompt(75, pooling)
        for start in range(0, 75, chunk):
            cut.add(hidden[start : start + chunk], start)
            cut.add(hidden[start : start + chunk], start)  # computed again after a preemption
        assert cut.vector == whole.vector
