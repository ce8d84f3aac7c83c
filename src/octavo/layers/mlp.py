"""Gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor

from octavo.kernels.rows import Activation, gate
from octavo.layers.linear import Linear


class GatedMLP:
    """down(act(gate(x)) · up(x)), with gate and up as one product."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation: Activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, H] -> [T, H] in float32 or the compute dtype."""
        return self._down(gate(self._gate_up(x), self._activation))
