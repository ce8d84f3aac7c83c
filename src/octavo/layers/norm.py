"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class RMSNorm:
    """x · w / sqrt(mean(x²) + eps), per row, in float32. `offset` 1 is Gemma's form, whose weight is stored minus 1."""

    def __init__(self, weight: Tensor, eps: float, *, offset: float = 0.0) -> None:
        self._weight = weight.float() + offset
        self._doubled = torch.cat((self._weight, self._weight))
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., N] float32 -> [..., N] float32."""
        if x.device.type != "cpu":
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
        # On a CPU rms_norm is six kernels, layer_norm one. The mean of (x, -x) is 0 and its variance mean(x²).
        doubled = torch.cat((x, -x), dim=-1)
        return F.layer_norm(doubled, self._doubled.shape, self._doubled, None, self._eps)[..., : x.shape[-1]]
