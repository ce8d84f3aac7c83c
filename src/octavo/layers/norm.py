"""Root-mean-square normalisation."""

from __future__ import annotations

from torch import Tensor

from octavo.kernels.rows import rms_norm


class RMSNorm:
    """x · w / sqrt(mean(x²) + eps), per row, in float32. `offset` 1 is Gemma's form, whose weight is stored minus 1."""

    def __init__(self, weight: Tensor, eps: float, *, offset: float = 0.0) -> None:
        self.weight = (weight.float() + offset).contiguous()
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., N] float32 -> [..., N] float32."""
        return rms_norm(x, self.weight, self.eps)
