"""What every model file offers to the engine."""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.layers.attention import AttentionCache
from octavo.models.config import ModelConfig
from octavo.models.inputs import ForwardInputs
from octavo.models.weights import WeightSource


class CausalLM(Protocol):
    """A decoder-only language model. Holds weights and no state: what was said before lies in the cache."""

    supports_paged: ClassVar[bool]

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None: ...

    @staticmethod
    def kv_layout(config: ModelConfig) -> list[LayerSpec]:
        """One spec per layer."""
        ...

    def inverse_frequencies(self, layer: int) -> Tensor:
        """[R / 2] float32: how far, per position, the first R dimensions of the layer's keys are rotated in pairs."""
        ...

    def forward(self, inputs: ForwardInputs, cache: AttentionCache) -> Tensor:
        """Final hidden states float32, [T, H] of the packed tokens or [R, H] of those that are wanted."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] float32 -> [R, V] float32."""
        ...

    def greedy(self, hidden: Tensor) -> Tensor | None:
        """hidden [R, H] float32 -> [R] int64: the lowest id of the largest of `logits`, -1 where that is not finite.

        None where these have to be written for it.
        """
        ...
