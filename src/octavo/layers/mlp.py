"""Gated feed-forward layer."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.rowwise import by_rows
from octavo.layers.linear import Linear
from octavo.step_batch import Phase


class GatedMLP:
    """down(act(gate(x)) · up(x)), with gate and up as one product."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Literal["silu", "gelu_tanh"]) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation = F.silu if activation == "silu" else _gelu_tanh

    def __call__(self, x: Tensor, phase: Phase) -> Tensor:
        """x [T, H] in the compute dtype -> [T, H]."""
        gate, up = self._gate_up(x, phase).chunk(2, dim=-1)
        return self._down(by_rows(self._activation, gate).mul_(up).to(x.dtype), phase)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")
