"""y = x Wᵀ + b, with W in whatever form its route packed."""

from __future__ import annotations

from torch import Tensor

from octavo.layers.linear.route import PackedWeight
from octavo.step_batch import Phase


class Linear:
    """A weight, packed once for each phase (or once for both), and an optional bias [N] float32."""

    def __init__(self, prompt: PackedWeight, generated: PackedWeight, bias: Tensor | None = None) -> None:
        self._weights = {Phase.PROMPT: prompt, Phase.GENERATED: generated}
        self._bias = bias

    def __call__(self, x: Tensor, phase: Phase) -> Tensor:
        """x [T, K], all of one phase -> [T, N] in the compute dtype; float32 where there is a bias."""
        y = self._weights[phase].apply(x)
        return y if self._bias is None else y + self._bias


class Head:
    """The output head: logits in float32, the same kernel for every row."""

    def __init__(self, weight: PackedWeight) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, H] in the compute dtype -> [R, V] float32, not rounded to the compute dtype."""
        return self._weight.apply_float32(x)
