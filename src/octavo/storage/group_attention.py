"""What the cache asks of those who store and attend for it. Knows none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.kernels.rows import HeadWeights, Rotation
from octavo.step_batch import StepBatch
from octavo.storage.block_table import BlockTable
from octavo.storage.layer_store import LayerStore
from octavo.storage.route import Route


class GroupAttention(Protocol):
    """How one group of layers stores and attends: what is decided once per step, then done for each layer."""

    def plan(self, batch: StepBatch, group: int, tables: list[BlockTable]) -> Any: ...

    def routes(self, plan: Any) -> Sequence[tuple[Route, str]]:
        """Route and reason of every row."""
        ...

    def compute(self, plan: Any, store: LayerStore, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    def compute_qkv(
        self,
        plan: Any,
        store: LayerStore,
        qkv: Tensor,
        rotation: Rotation,
        weights: HeadWeights,
        dtype: torch.dtype,
    ) -> Tensor | None:
        """`KVCache.attend_qkv`, where the step's kernels do it in one; None, with nothing done, where they do not."""
        ...
