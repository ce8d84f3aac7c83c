"""Root-mean-square normalisation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class RMSNorm:
    """x · w / sqrt(mean(x²) + eps), per row, in float32. `offset` 1 is Gemma's form, whose weight is stored minus 1."""

    def __init__(self, weight: Tensor, eps: float, *, offset: float = 0.0) -> None:
        self._weight = weight.float() + offset
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., N] float32 -> [..., N] float32."""
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
