"""Log-probabilities of the prompt: complete, and the same whatever was cached, chunked, batched or preempted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import LoadedModel, share_weights
from octavo.errors import EngineFault, InvalidRequest
from octavo.llm import LLM
from octavo.outputs import RequestOutput, TokenLogprobs
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import STORAGES, Driver, prompt_of

SCORE = SamplingParams(max_tokens=0, prompt_logprobs=2)
Scores = tuple[TokenLogprobs | None, ...]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def loaded(request: pytest.FixtureRequest, load: Callable[..., LoadedModel]) -> LoadedModel:
    return load(request.param)


def engine(loaded: LoadedModel, storage: StorageKind = StorageKind.PAGED, **settings: Any) -> LLM:
    config = EngineConfig(max_context=512, threads=1, **settings)
    decision = StorageDecision(storage, "the test asks for it")
    return LLM.over(EngineCore(share_weights(loaded, config, decision), config))


def scored(output: RequestOutput) -> Scores:
    assert output.prompt_logprobs is not None
    return output.prompt_logprobs


def test_a_prompt_is_scored_to_its_last_token_without_generating(loaded: LoadedModel) -> None:
    prompt = prompt_of(40)
    output = engine(loaded).generate(prompt, SCORE)[0]
    assert [None if each is None else each.token_id for each in scored(output)] == [None, *prompt[1:]]
    assert all(len(each.top) == 2 for each in scored(output) if each is not None)
    choice = output.outputs[0]
    assert (choice.text, choice.token_ids, choice.finish_reason) == ("", (), "length")
    assert output.usage.completion_tokens == 0


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
def test_a_prompt_that_fills_the_context_is_scored_and_a_longer_one_refused(
    loaded: LoadedModel, storage: StorageKind
) -> None:
    llm, prompt = engine(loaded, storage), prompt_of(512)
    entries = scored(llm.generate(prompt, SCORE)[0])
    assert [each.token_id for each in entries if each is not None] == list(prompt[1:])
    assert entries[:300] == scored(llm.generate(prompt[:300], SCORE)[0])
    with pytest.raises(InvalidRequest, match=r"513 tokens; the context holds 512: shorten it to at most 512"):
        llm.generate((*prompt, 5), SCORE)
    with pytest.raises(InvalidRequest, match=r"512 tokens; the context holds 512, one of them for output"):
        llm.generate(prompt, SamplingParams(max_tokens=1))


def test_scores_are_the_log_probabilities_that_generation_reports(loaded: LoadedModel) -> None:
    llm, prompt = engine(loaded), prompt_of(20)
    written = llm.generate(prompt, SamplingParams(max_tokens=24, ignore_eos=True, logprobs=2))[0].outputs[0]
    again = llm.generate(prompt + written.token_ids, SCORE)[0]
    assert scored(again)[len(prompt) :] == written.logprobs


def test_scores_do_not_depend_on_what_was_cached_or_how_it_was_cut(loaded: LoadedModel) -> None:
    prompt = prompt_of(120)
    cold = scored(engine(loaded).generate(prompt, SCORE)[0])
    warm = engine(loaded)
    warm.generate(prompt, SamplingParams(max_tokens=4, ignore_eos=True))
    other = prompt[:70] + prompt_of(50, seed=9)
    both = [scored(each) for each in warm.generate([prompt, other], SCORE)]
    reverse = [scored(each) for each in engine(loaded).generate([other, prompt], SCORE)]
    assert both == reverse[::-1]
    assert both[0] == cold
    assert scored(engine(loaded, prefill_chunk=7).generate(prompt, SCORE)[0]) == cold
    assert scored(engine(loaded, storage=StorageKind.DENSE).generate(prompt, SCORE)[0]) == cold


def test_a_preempted_prompt_is_scored_once(loaded: LoadedModel) -> None:
    prompt = prompt_of(50)
    cold = scored(engine(loaded).generate(prompt, SCORE)[0])
    driver = Driver(loaded, prefill_chunk=16)
    driver.add("a", prompt, SCORE)
    assert driver.core.step() == []
    driver.core.preempt("a")
    events = [event for _ in range(6) for event in driver.core.step()]
    assert [event.prompt_logprobs for event in events] == [cold]


def test_only_the_first_choice_scores_the_prompt(loaded: LoadedModel) -> None:
    params = SamplingParams(max_tokens=3, n=2, temperature=1.0, seed=1, prompt_logprobs=0, ignore_eos=True)
    output = engine(loaded).generate(prompt_of(10), params)[0]
    assert len(scored(output)) == 10
    assert [len(choice.token_ids) for choice in output.outputs] == [3, 3]


def test_unsound_logits_of_a_prompt_end_the_request_alone(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = engine(loaded)
    logits = llm.core.runner.logits

    def unsound(hidden: Tensor) -> Tensor:  # but for the row that is sampled
        return logits(hidden) if len(hidden) == 1 else logits(hidden).fill_(torch.nan)

    monkeypatch.setattr(llm.core.runner, "logits", unsound)
    with pytest.raises(EngineFault, match="logits of the prompt hold NaN"):
        llm.generate(prompt_of(10), SCORE)
    monkeypatch.undo()
    assert len(scored(llm.generate(prompt_of(10), SCORE)[0])) == 10


def test_nothing_to_generate_and_nothing_to_score_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_tokens is 0"):
        SamplingParams(max_tokens=0)


def test_a_snapshot_cannot_tell_the_scores_of_its_tokens(loaded: LoadedModel) -> None:
    llm, prompt = engine(loaded), prompt_of(20)
    kept: list[Any] = []
    for _ in llm.stream(prompt, SamplingParams(max_tokens=2, ignore_eos=True), on_snapshot=kept.append):
        pass
    with pytest.raises(InvalidRequest, match="prompt_logprobs is 1 and the prompt's K/V comes with a snapshot"):
        llm.generate(
            kept[0].token_ids + prompt_of(4), SamplingParams(max_tokens=1, prompt_logprobs=1), snapshot=kept[0]
        )


def test_engines_are_left_empty(loaded: LoadedModel) -> None:
    core: EngineCore = engine(loaded).core
    LLM.over(core).generate([prompt_of(33), prompt_of(8, 1)], SCORE)
    core.pool.check_integrity()
    assert not core.has_work
