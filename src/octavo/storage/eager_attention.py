"""Attention of one group of layers in torch: every row's keys and values are decoded into scratch first."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.chunked_attention import attend_span, smallest_invariant_rows
from octavo.kernels.rows import HeadWeights, Rotation
from octavo.step_batch import StepBatch
from octavo.storage.block_table import BlockTable
from octavo.storage.layer_store import KVRows, LayerStore
from octavo.storage.plan import BlockWrites, GroupPlan, plan_group
from octavo.storage.route import Route
from octavo.storage.scratch import Scratch
from octavo.storage.staging import stage

_REASONS = {Route.DENSE: "dense sequence", Route.RING: "windowed layers of a dense sequence"}


class EagerAttention:
    """Serves every device, codec and head size. `gather_reason` says why paged rows are gathered."""

    def __init__(self, spec: LayerSpec, block_size: int, device: torch.device, gather_reason: str) -> None:
        self._spec = spec
        self._block_size = block_size
        self._device = device
        self._gather_reason = gather_reason
        self._scratch = Scratch(spec, device)
        self._min_rows = _min_rows(spec, device)

    def plan(self, batch: StepBatch, group: int, tables: list[BlockTable]) -> GroupPlan:
        plan = plan_group(batch, group, self._spec, tables, self._block_size, self._scratch, self._device)
        if len(plan.rows) == 1:
            plan.rows[0].views.zero_padding()
        return plan

    def routes(self, plan: GroupPlan) -> list[tuple[Route, str]]:
        return [(row.route, _REASONS.get(row.route, self._gather_reason)) for row in plan.rows]

    def compute_qkv(
        self,
        plan: GroupPlan,
        store: LayerStore,
        qkv: Tensor,
        rotation: Rotation,
        weights: HeadWeights,
        dtype: torch.dtype,
    ) -> None:
        """See `GroupAttention`: torch does one thing after another."""

    def compute(self, plan: GroupPlan, store: LayerStore, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if plan.writes is not None:
            _write_blocks(store.blocks, plan.writes, k, v)
        alone = len(plan.rows) == 1
        outputs = []
        for row in plan.rows:
            stage(row, store, self._block_size, k, v)
            if not alone:  # a row that has the workspace to itself was padded when the step was planned
                row.views.zero_padding()
            query = q if alone else q[row.q0 : row.q1]
            outputs.append(
                attend_span(
                    query,
                    row.views.keys,
                    row.views.values,
                    row.span,
                    scale=self._spec.scale,
                    softcap=self._spec.softcap,
                    min_rows=self._min_rows,
                    sinks=store.sinks,
                )
            )
        return outputs[0] if alone else torch.cat(outputs)


def _min_rows(spec: LayerSpec, device: torch.device) -> int:
    """Rows that attention's products must have for a row's bits not to depend on their number."""
    group = spec.num_q_heads // spec.num_kv_heads
    if device.type != "cpu":
        return group
    return smallest_invariant_rows(spec.num_kv_heads, group, spec.k_dim, spec.v_dim, torch.get_num_threads())


def _write_blocks(blocks: KVRows, writes: BlockWrites, k: Tensor, v: Tensor) -> None:
    if writes.run is not None:
        blocks.write_run(writes.run, k, v)
    elif writes.tokens is None:
        blocks.write(writes.rows, k, v)
    else:
        blocks.write(writes.rows, k[writes.tokens], v[writes.tokens])
