"""Token embeddings."""

from __future__ import annotations

from torch import Tensor

from octavo.layers.linear import Table


class Embedding:
    """A packed table [V, H] looked up by token id; rows come out in float32, times `scale`."""

    def __init__(self, table: Table, *, scale: float = 1.0) -> None:
        self._table = table
        self._scale = scale

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [T] int64 -> [T, H] float32."""
        rows = self._table.lookup(token_ids)
        return rows if self._scale == 1.0 else rows * self._scale
