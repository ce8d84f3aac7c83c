"""The seam: the only place where storage and kernels meet. Models call `attend` and know nothing of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.step_batch import StepBatch
from octavo.storage.block_table import BlockTable
from octavo.storage.codec import Codec
from octavo.storage.compiled_attention import CompiledAttention
from octavo.storage.eager_attention import EagerAttention
from octavo.storage.layer_store import KVRows, LayerStore
from octavo.storage.route import Route, RouteCounts, RouteSwitches


class GroupAttention(Protocol):
    """How one group of layers stores and attends: what is decided once per step, then done for each layer."""

    def plan(self, batch: StepBatch, group: int, tables: list[BlockTable]) -> Any: ...

    def routes(self, plan: Any) -> Sequence[tuple[Route, str]]:
        """Route and reason of every row."""
        ...

    def compute(self, plan: Any, store: LayerStore, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class KVCache:
    """K and V of every layer, for up to `max_seqs` sequences.

    Memory is taken at construction: per group `num_blocks[g] * block_size` rows of blocks for each layer, and a ring
    of `window` rows per slot for windowed layers. Which block belongs to whom is the scheduler's business and
    arrives with each `StepBatch`. Owned by one thread.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        num_blocks: Sequence[int],
        block_size: int,
        max_seqs: int,
        max_context: int,
        codecs: tuple[Codec, Codec],
        device: torch.device,
        rings: bool = True,
        switches: RouteSwitches | None = None,
    ) -> None:
        """`switches` are the environment's unless given."""
        self.routes = RouteCounts()
        switches = switches or RouteSwitches.from_environment()
        max_blocks = -(-max_context // block_size)
        self._tables = [BlockTable(len(groups), max_blocks, block_size) for _ in range(max_seqs)]
        self._group_of = {layer: g for g, group in enumerate(groups) for layer in group.layers}
        self._layers: dict[int, LayerStore] = {}
        self._attention: list[GroupAttention] = []
        for g, group in enumerate(groups):
            assert group.spec.kind in ("full", "sliding"), f"no route for {group.spec}"
            assert not group.spec.sink_logits, f"no route for {group.spec}"
            window = group.spec.window
            for layer in group.layers:
                blocks = KVRows.allocate(group.spec, num_blocks[g] * block_size, *codecs, device)
                ring = KVRows.allocate(group.spec, max_seqs * window, *codecs, device) if window and rings else None
                self._layers[layer] = LayerStore(blocks, ring, codecs)
            store = self._layers[group.layers[0]]
            self._attention.append(_group_attention(group.spec, store, block_size, device, switches))
        self._plans: list[Any] = []
        if switches.deterministic and device.type == "cuda":
            torch.use_deterministic_algorithms(True)

    def plan(self, batch: StepBatch) -> None:
        """Route the rows of the next step and count the routes. Valid until the next call."""
        for row in batch.rows:
            self._tables[row.slot].update(row)
        self._plans = [attention.plan(batch, g, self._tables) for g, attention in enumerate(self._attention)]
        for attention, plan in zip(self._attention, self._plans, strict=True):
            for route, reason in attention.routes(plan):
                self.routes.add(route, reason)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v, then attend causally, each row within its own sequence.

        q [T, Hq, Dk], k [T, Hkv, Dk], v [T, Hkv, Dv], packed as the planned batch; returns float32 [T, Hq, Dv].
        """
        group = self._group_of[layer]
        return self._attention[group].compute(self._plans[group], self._layers[layer], q, k, v)


def _group_attention(
    spec: LayerSpec, store: LayerStore, block_size: int, device: torch.device, switches: RouteSwitches
) -> GroupAttention:
    refusal = CompiledAttention.refusal(spec, store, device)
    if refusal is None:
        return CompiledAttention(spec, block_size, switches.refusal(None))
    return EagerAttention(spec, block_size, device, switches.refusal(refusal) or refusal)
