"""The residual stream of a step: sums and norms are left to the kernels of the products beside them, where they can."""

from __future__ import annotations

from torch import Tensor

from octavo.kernels.rows import Activation, HalfNormed
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm


class Residual:
    """x [T, H] float32, which is added to in place.

    A sum that no product made waits for the next norm, which makes it too. A product that adds to x may leave half of
    the norm that comes next.
    """

    def __init__(self, x: Tensor) -> None:
        self._x = x
        self._pending: Tensor | None = None
        self._half: tuple[RMSNorm, HalfNormed] | None = None

    def normed(self, norm: RMSNorm) -> Tensor:
        """norm(x) [T, H]."""
        pending, self._pending = self._pending, None
        return norm.after_(self._x, pending)

    def product(self, norm: RMSNorm, linear: Linear) -> Tensor:
        """linear.product_in_parts(norm(x))."""
        half = self._half_of(norm)
        y = None if half is None else linear.product_of_half(half)
        return linear.product_in_parts(self.normed(norm)) if y is None else y

    def gated(self, norm: RMSNorm, linear: Linear, activation: Activation) -> Tensor:
        """linear.gated(norm(x), activation)."""
        half = self._half_of(norm)
        y = None if half is None else linear.gated_of_half(half, activation)
        return linear.gated(self.normed(norm), activation) if y is None else y

    def keep(self, rows: Tensor) -> None:
        """Go on with the rows [R] alone."""
        assert self._pending is None, "a sum is pending"
        self._x, self._half = self._x[rows], None

    def add(self, y: Tensor) -> None:
        """x += y [T, H], of any floating dtype, or in parts [S, T, H]."""
        assert self._pending is None, "a sum is pending already"
        self._pending, self._half = y, None

    def add_product(self, linear: Linear, y: Tensor, next_norm: RMSNorm | None) -> None:
        """x += linear(y); `next_norm` is the one that x is seen through next, if a product will see it."""
        assert self._pending is None, "a sum is pending already"
        half = None if next_norm is None else linear.add_for_norm_(self._x, y, next_norm)
        if next_norm is not None and half is not None:
            self._half = next_norm, half
        elif linear.add_to_(self._x, y):
            self._half = None
        else:
            self.add(linear.in_parts(y))

    def _half_of(self, norm: RMSNorm) -> HalfNormed | None:
        return None if self._half is None or self._half[0] is not norm else self._half[1]
