"""Gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor

from octavo.kernels.cpu.blocks import FeedForwardWeights
from octavo.kernels.rows import Activation
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.layers.residual import Residual

_FEW = 64  # rows whose intermediate results fit the caches, so that one call for all kernels pays


class GatedMLP:
    """down(act(gate(x)) · up(x)), with gate and up as one product."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation: Activation = activation
        gate_up_codes, down_codes = gate_up.affine, down.affine
        self._codes = None if gate_up_codes is None or down_codes is None else (gate_up_codes, down_codes)

    @property
    def compiled(self) -> FeedForwardWeights | None:
        """The weights, if all are the compiled kernels'."""
        if self._codes is None:
            return None
        return FeedForwardWeights(*self._codes, gelu=self._activation == "gelu_tanh")

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, H] -> [T, H] in float32 or the compute dtype."""
        if self._codes is not None:
            (gate_up, down), gelu = self._codes, self._activation == "gelu_tanh"
            if x.shape[0] <= _FEW:
                return gate_up.gated_mlp(x, gelu, down)
            return down.multiply(gate_up.gated(x, gelu))
        return self._down(self._gate_up.gated(x, self._activation))

    def add_to(self, stream: Residual, norm: RMSNorm, next_norm: RMSNorm | None) -> None:
        """Add `self(norm(x))` to the stream's x, which a product sees through `next_norm` next, if one does."""
        if self._codes is not None:
            stream.add(self(stream.normed(norm)))
        else:
            stream.add_product(self._down, stream.gated(norm, self._gate_up, self._activation), next_norm)
