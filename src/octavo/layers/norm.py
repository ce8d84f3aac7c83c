"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.kernels.rows import add_rms_norm_, rms_norm


class RMSNorm:
    """x · w / sqrt(mean(x²) + eps), per row, in float32. `offset` 1 is Gemma's form, whose weight is stored minus 1.

    What comes out is rounded to `dtype`: where a linear follows, to what that would round it to itself.
    """

    def __init__(self, weight: Tensor, eps: float, *, offset: float = 0.0, dtype: torch.dtype = torch.float32) -> None:
        self.weight = (weight.float() + offset).contiguous()
        self.eps = eps
        self._dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., N] float32 -> [..., N]."""
        return rms_norm(x, self.weight, self.eps, self._dtype)

    def after_(self, x: Tensor, y: Tensor | None, inner: RMSNorm | None = None) -> Tensor:
        """Add y, of any floating dtype, to the residual stream x [T, N] float32 in place; the norm of what x is then.

        y may be in parts [S, T, N], which are added up first. `inner` normalises y first. Without y, x is as it was.
        """
        if y is None:
            return self(x)
        given = None if inner is None else (inner.weight, inner.eps)
        return add_rms_norm_(x, y, self.weight, self.eps, self._dtype, given)
