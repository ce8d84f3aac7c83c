"""How a step's layers attend within one call of the compiled kernels, where these serve all of them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.kernels.cpu.blocks import AttentionCall, LayerRows, StoredLayers
from octavo.storage.compiled_attention import CompiledAttention, CompiledPlan
from octavo.storage.group_attention import GroupAttention
from octavo.storage.layer_store import LayerStore


class LayersCall:
    """Of the layers in `stores`, by number, of the groups in `group_of`; looks at them when first asked."""

    def __init__(
        self, attention: Sequence[GroupAttention], stores: Mapping[int, LayerStore], group_of: Mapping[int, int]
    ) -> None:
        self._attention = attention
        self._stores = stores
        self._group_of = group_of
        self._layers: StoredLayers | None = None

    def forget(self) -> None:
        """A store was replaced: look again."""
        self._layers = None

    def of(self, plans: Sequence[Any]) -> AttentionCall | None:
        """For a step with these plans of the groups; None where one group stores and attends in several calls."""
        steps = []
        for attention, plan in zip(self._attention, plans, strict=True):
            if not isinstance(attention, CompiledAttention) or not isinstance(plan, CompiledPlan):
                return None
            if plan.single is None or not attention.has_equal_widths:
                return None
            steps.append((plan.single, plan.single is plan.rings))
        if self._layers is None:
            self._layers = StoredLayers([self._rows(layer) for layer in sorted(self._stores)])
        return AttentionCall(self._layers, steps)

    def _rows(self, layer: int) -> LayerRows:
        store, group = self._stores[layer], self._group_of[layer]
        attention = self._attention[group]
        assert isinstance(attention, CompiledAttention)
        rings = None if store.ring is None else store.kernel_ring
        return LayerRows(store.kernel_blocks, rings, attention.kernel, store.sinks, group)
