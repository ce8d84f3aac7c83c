"""Engines over tiny random checkpoints, and a driver that submits requests at chosen steps and keeps all they got."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.events import StepEvent
from octavo.engine.loaded_model import LoadedModel, load_model, plan_model, share_weights
from octavo.outputs import FinishReason, TokenLogprobs
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind

# family, changes to its tiny config, and the encoding of a GGUF file of it (else it is a directory in float32)
CASES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "llama": ("llama", {}, None),
    "mistral": ("mistral", {}, None),
    "qwen2": ("qwen2", {}, None),
    "qwen3": ("qwen3", {}, None),
    "gemma3": ("gemma3", {}, None),
    "mistral-window-5": ("mistral", {"sliding_window": 5}, None),
    "mistral-window-16": ("mistral", {"sliding_window": 16}, None),
    "gemma3-window-5": ("gemma3", {"sliding_window": 5}, None),
    "llama-q4_0": ("llama", {}, "Q4_0"),
}
STORAGES = tuple(StorageKind)
GREEDY_12 = SamplingParams(max_tokens=12, ignore_eos=True)


def open_model(path: Path, dtype: str = "bfloat16") -> LoadedModel:
    config = EngineConfig(dtype=dtype, device="cpu", threads=1)  # type: ignore[arg-type]
    return load_model(plan_model(path, config), config)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random ids that are neither special nor padding."""
    rng = random.Random(f"{length} {seed}")
    return tuple(rng.randrange(3, 380) for _ in range(length))


@dataclass(slots=True)
class Outcome:
    """What one request got: `logits[i]` [V] is what `token_ids[i]` was sampled from; none with decode lookahead.

    `logprobs[i]` are those of `token_ids[i]`; none unless they were asked for.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logits: list[Tensor] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None


class Driver:
    """An `EngineCore` of given weights under a storage and settings of its own."""

    def __init__(
        self, loaded: LoadedModel, storage: StorageKind = StorageKind.PAGED, max_context: int = 512, **settings: Any
    ) -> None:
        config = EngineConfig(max_context=max_context, threads=1, **settings)
        loaded = share_weights(loaded, config, StorageDecision(storage, "the test asks for it"))
        # Whoever is shown the logits of a step sees them before the next is launched.
        self.core = EngineCore(loaded, config, None if config.decode_lookahead else self._observe)
        self.outcomes: dict[str, Outcome] = {}
        self.at_start = self.core.pool.num_free_blocks

    def _observe(self, request_id: str, logits: Tensor) -> None:
        self.outcomes[request_id].logits.append(logits.clone())

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY_12,
        seed: int = 0,
        choice: int = 0,
    ) -> None:
        """Queue a request; a refused one leaves no outcome."""
        self.core.add(Request(request_id, tuple(prompt), params, seed, choice))
        self.outcomes[request_id] = Outcome()

    def step(self) -> list[StepEvent]:
        events = self.core.step()
        for event in events:
            outcome = self.outcomes[event.delta.request_id]
            assert outcome.finish_reason is None, "an event after the end"
            outcome.token_ids += event.delta.token_ids
            outcome.text += event.delta.text
            if event.logprobs is not None:
                outcome.logprobs.append(event.logprobs)
            outcome.finish_reason, outcome.error = event.delta.finish_reason, event.error
        return events

    def run(self, max_steps: int = 10_000) -> dict[str, Outcome]:
        """Step until idle."""
        while self.core.has_work:
            assert max_steps, "the engine does not come to an end"
            max_steps -= 1
            self.step()
        return self.outcomes

    def assert_idle(self) -> None:
        """Nothing is left of any request, to the last block and slot."""
        pool = self.core.pool
        assert not self.core.has_work
        assert pool.num_free_blocks == self.at_start == tuple(p.num_blocks for p in pool.pools)
        assert pool.num_seqs == 0 and pool.num_free_slots == pool.max_seqs
        pool.check_integrity()


_answers: dict[tuple[object, ...], list[tuple[LoadedModel, SamplingParams, Outcome]]] = {}


def alone(
    loaded: LoadedModel,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY_12,
    storage: StorageKind = StorageKind.DENSE,
    seed: int = 0,
    choice: int = 0,
) -> Outcome:
    """The same request with an engine to itself, prefilled whole. It is computed once, so leave it as it is."""
    known = _answers.setdefault((id(loaded), tuple(prompt), storage, seed, choice), [])
    for _, asked, outcome in known:
        if asked == params:
            return outcome
    driver = Driver(loaded, storage, max_num_seqs=1, prefix_cache=False)
    driver.add("alone", prompt, params, seed, choice)
    outcome = driver.run()["alone"]
    known.append((loaded, params, outcome))  # the model is kept, so that no other can have its id
    return outcome
