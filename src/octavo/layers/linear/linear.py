"""y = x Wᵀ + b, with W in whatever form its route packed."""

from __future__ import annotations

from torch import Tensor

from octavo.kernels.cpu.linear import PackedAffine
from octavo.kernels.rows import Activation, gate
from octavo.layers.linear.affine_route import AffineWeight
from octavo.layers.linear.route import GatedWeight, PackedWeight


class Linear:
    """A packed weight and an optional bias [N] float32."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._gated = weight if bias is None and isinstance(weight, GatedWeight) else None
        self.bias = bias

    @property
    def affine(self) -> PackedAffine | None:
        """The weight, if it is one of the compiled kernels' and nothing is added to the product."""
        return self._weight.packed if self.bias is None and isinstance(self._weight, AffineWeight) else None

    @property
    def affine_product(self) -> PackedAffine | None:
        """`affine`, whatever is added to the product."""
        return self._weight.packed if isinstance(self._weight, AffineWeight) else None

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] float32 or the compute dtype, contiguous -> [T, N] in either; float32 where there is a bias."""
        y = self._weight.apply(x)
        return y if self.bias is None else y + self.bias

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        """y = x Wᵀ + b [T, 2 N], gates before values -> activation(gates) · values [T, N]."""
        y = None if self._gated is None else self._gated.apply_gated(x, activation)
        return gate(self(x), activation) if y is None else y

    def product(self, x: Tensor) -> Tensor:
        """Without the bias, for who adds it elsewhere."""
        return self._weight.apply(x)


class Head:
    """The output head: logits in float32, the same kernel for every row."""

    def __init__(self, weight: PackedWeight) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, H] float32 -> [R, V] float32, not rounded to the compute dtype."""
        return self._weight.apply_float32(x)
