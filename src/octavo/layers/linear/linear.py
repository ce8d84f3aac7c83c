"""y = x Wᵀ + b, with W in whatever form its route packed."""

from __future__ import annotations

from torch import Tensor

from octavo.kernels.cpu.linear import PackedAffine
from octavo.kernels.rows import Activation, HalfNormed, gate
from octavo.layers.linear.affine_route import AffineWeight
from octavo.layers.linear.route import FusingWeight, PackedWeight
from octavo.layers.norm import RMSNorm


class Linear:
    """A packed weight and an optional bias [N] float32."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._fusing = weight if isinstance(weight, FusingWeight) else None
        self._unbiased = self._fusing if bias is None else None
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
        y = None if self._unbiased is None else self._unbiased.apply_gated(x, activation)
        return gate(self(x), activation) if y is None else y

    def gated_of_half(self, x: HalfNormed, activation: Activation) -> Tensor | None:
        """`gated` of a norm; None where its kernel does not take that in halves."""
        return None if self._unbiased is None else self._unbiased.apply_gated(x, activation)

    def product(self, x: Tensor) -> Tensor:
        """Without the bias, for who adds it elsewhere."""
        return self._weight.apply(x)

    def product_in_parts(self, x: Tensor) -> Tensor:
        """`product`, or parts of it [S, T, N] float32 for who adds them up elsewhere."""
        y = None if self._fusing is None else self._fusing.apply_in_parts(x)
        return self._weight.apply(x) if y is None else y

    def in_parts(self, x: Tensor) -> Tensor:
        """self(x), or parts of it [S, T, N] float32 for who adds them up elsewhere."""
        return self.product_in_parts(x) if self.bias is None else self(x)

    def product_of_half(self, x: HalfNormed) -> Tensor | None:
        """`product` of a norm; None where its kernel does not take that in halves."""
        return None if self._fusing is None else self._fusing.apply_half_normed(x)

    def add_to_(self, total: Tensor, x: Tensor) -> bool:
        """total [T, N] float32 += self(x) in one kernel; False, with nothing done, where there is none."""
        return self._unbiased is not None and self._unbiased.add_to_(total, x)

    def add_for_norm_(self, total: Tensor, x: Tensor, norm: RMSNorm) -> HalfNormed | None:
        """`add_to_`, and half of norm(total); None, with nothing done, where no one kernel does all of it."""
        return None if self._unbiased is None else self._unbiased.add_for_norm_(total, x, norm.weight, norm.eps)


class Head:
    """The output head: logits in float32, the same kernel for every row."""

    def __init__(self, weight: PackedWeight) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, H] float32 -> [R, V] float32, not rounded to the compute dtype."""
        return self._weight.apply_float32(x)

    def greedy(self, x: Tensor) -> Tensor | None:
        """x [R, H] float32 -> [R] int64: the lowest id of each row's largest logit, -1 if that is not finite.

        None where no kernel finds it without writing logits.
        """
        return self._weight.packed.greedy(x) if isinstance(self._weight, AffineWeight) else None
