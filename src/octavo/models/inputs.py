"""What a model's forward pass is given, beside the cache."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """Packed tokens: token_ids [T] and positions [T] int64, every position below `limit`."""

    token_ids: Tensor
    positions: Tensor
    limit: int
