"""A benchmark fixture: the real engine over a model that computes nothing and takes a given time for every step.

Scheduler, cache bookkeeping, sampler, detokenizer and transport are the real ones, so what a run takes beyond its
steps is their overhead. No model name leads here; a benchmark passes `MOCK_ENGINE` to `ProcessEngine` as its factory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.cache.spec import LayerSpec
from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.engine_parts import EngineParts
from octavo.engine.exactness import Exactness
from octavo.engine.ledger import plan_memory
from octavo.engine.loaded_model import LoadedModel, ModelPlan, Progress
from octavo.engine.resident import Resident
from octavo.engine.served_model import ServedCore, engine_parts
from octavo.engine.working_memory import Serving
from octavo.layers.attention import AttentionCache
from octavo.layers.linear import choose_route
from octavo.layers.rope_scaling import RopeScaling
from octavo.models.config import ModelConfig
from octavo.models.inputs import ForwardInputs
from octavo.models.loaders.checkpoint_base import TensorTable
from octavo.step_batch import StorageKind
from octavo.storage.codecs import resolve_kv_dtype
from octavo.tokenizer import Tokenizer

MOCK_ENGINE = "octavo.bench.mock_model:mock_engine"
_CPU = torch.device("cpu")
_CYCLE = "abcdefghijklmnopqrstuvwxyz "  # what the model says, one letter a token
_DIM = 16


@dataclass(frozen=True, slots=True)
class MockSettings:
    """`step_s` is seconds per step, whatever the batch."""

    step_s: float = 0.005
    max_num_seqs: int = 64
    max_context: int = 4096
    max_batch_tokens: int = 2048
    prefix_cache: bool = True


def mock_engine(progress: Progress, settings: MockSettings) -> EngineParts:
    """A factory for `ProcessEngine`."""
    config = EngineConfig(
        max_context=settings.max_context,
        max_num_seqs=settings.max_num_seqs,
        max_batch_tokens=settings.max_batch_tokens,
        prefill_chunk=settings.max_batch_tokens,
        prefix_cache=settings.prefix_cache,
        threads=1,
    )
    return engine_parts(ServedCore(mock_model(config, settings.step_s), config), config, "mock")


def mock_model(config: EngineConfig, step_s: float) -> LoadedModel:
    """A `LoadedModel` for an engine of its own. Sets torch's thread count, as loading a model does."""
    torch.set_num_threads(1)
    tokenizer = mock_tokenizer()
    shape = ModelConfig(
        model_type="mock",
        vocab_size=tokenizer.vocab_size,
        hidden_size=_DIM,
        intermediate_size=_DIM,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=_DIM,
        max_position_embeddings=1 << 20,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        rope_scaling=RopeScaling(),
        layer_types=("full_attention",),
        tie_word_embeddings=True,
        eos_token_ids=tuple(tokenizer.eos_token_ids),
    )
    codecs = resolve_kv_dtype("auto", torch.float32)
    ledger = plan_memory(
        shape,
        MockModel.kv_layout(shape),
        config,
        serving=Serving(StorageKind.PAGED, codecs, _CPU),
        resident=Resident(weights=0),
        available=2 << 30,
    )
    plan = ModelPlan(
        checkpoint=MockCheckpoint(shape, tokenizer),
        device=_CPU,
        dtype=torch.float32,
        threads=1,
        routes=choose_route("full", torch.float32, _CPU),
        codecs=codecs,
        storage=StorageDecision(StorageKind.PAGED, "the fixture's"),
        ledger=ledger,
        exact=Exactness(False, "not asked for"),
    )
    return LoadedModel(plan, MockModel(step_s, tokenizer), tokenizer, {"none": 0}, load_s=0.0)


class MockCheckpoint(TensorTable):
    """A checkpoint without tensors."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        super().__init__(Path("mock"), config, {})
        self._tokenizer = tokenizer

    def tokenizer(self, *, force: bool = False) -> Tokenizer:
        return self._tokenizer


class MockModel:
    """Sleeps, and goes on with the letter after the last one. Stores no K/V."""

    supports_paged: ClassVar[bool] = True

    def __init__(self, step_s: float, tokenizer: Tokenizer) -> None:
        self._step_s = step_s
        letters = [tokenizer.encode(letter)[0] for letter in _CYCLE]
        self._successor = torch.full((tokenizer.vocab_size,), letters[0])
        self._successor[letters] = torch.tensor([*letters[1:], letters[0]])
        self._vocab_size = tokenizer.vocab_size

    @staticmethod
    def kv_layout(config: ModelConfig) -> list[LayerSpec]:
        return [LayerSpec("full", 1, 1, config.head_dim, config.head_dim, config.head_dim**-0.5)]

    def inverse_frequencies(self, layer: int) -> Tensor:
        return torch.zeros(_DIM // 2)

    def forward(self, inputs: ForwardInputs, cache: AttentionCache) -> Tensor:
        """[T, 1], or [R, 1] of those that are wanted: the token ids."""
        time.sleep(self._step_s)
        return inputs.of_wanted(inputs.token_ids[:, None].float())

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V]: all on the successor."""
        logits = torch.zeros(len(hidden), self._vocab_size)
        return logits.scatter_(1, self._successor[hidden.long()], 50.0)

    def greedy(self, hidden: Tensor) -> Tensor | None:
        return None
