"""y = x Wᵀ + b, with W in whatever form its route packed."""

from __future__ import annotations

from torch import Tensor

from octavo.layers.linear.route import PackedWeight


class Linear:
    """A packed weight and an optional bias [N], added in float32 precision of the bias's own dtype."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N] in the compute dtype; float32 where there is a bias."""
        y = self._weight.apply(x)
        return y if self._bias is None else y + self._bias

    def float32(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N] float32 without rounding to the compute dtype."""
        y = self._weight.apply_float32(x)
        return y if self._bias is None else y + self._bias
