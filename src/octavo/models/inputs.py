"""What a model's forward pass is given, beside the cache."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """Packed tokens: token_ids [T] and positions [T] int64, every position below `limit`.

    Hidden states are asked for of the tokens `wanted` [R] int64, or of all.
    """

    token_ids: Tensor
    positions: Tensor
    limit: int
    wanted: Tensor | None = None

    def of_wanted(self, hidden: Tensor) -> Tensor:
        """Those of all tokens [T, H] -> [R, H], or as they are."""
        return hidden if self.wanted is None else hidden[self.wanted]
