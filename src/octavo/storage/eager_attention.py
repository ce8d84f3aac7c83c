"""Attention of one group of layers in torch: every row's keys and values are decoded into scratch first."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.chunked_attention import attend_span, smallest_invariant_rows
from octavo.kernels.rows import HeadWeights, Rotation
from octavo.kernels.side_by_side import attend_side_by_side
from octavo.step_batch import StepBatch
from octavo.storage.block_table import BlockTable
from octavo.storage.layer_store import KVRows, LayerStore
from octavo.storage.plan import BlockWrites, GroupPlan, plan_group
from octavo.storage.route import Route
from octavo.storage.scratch import Scratch
from octavo.storage.side_by_side import SideBySide
from octavo.storage.staging import stage

_REASONS = {Route.DENSE: "dense sequence", Route.RING: "windowed layers of a dense sequence"}


class EagerAttention:
    """Serves every device, codec and head size. `gather_reason` says why paged rows are gathered."""

    def __init__(
        self,
        spec: LayerSpec,
        block_size: int,
        device: torch.device,
        gather_reason: str,
        *,
        side_by_side: bool = False,
    ) -> None:
        """`side_by_side`: single tokens of several sequences are attended to together, and other rows by whole tiles; a
        row's bits are not its own then.
        """
        self._spec = spec
        self._block_size = block_size
        self._device = device
        self._gather_reason = gather_reason
        self._side_by_side = side_by_side
        self._scratch = Scratch(spec, device)
        self._min_rows = _min_rows(spec, device)

    def plan(self, batch: StepBatch, group: int, tables: list[BlockTable]) -> GroupPlan:
        plan = plan_group(
            batch,
            group,
            self._spec,
            tables,
            self._block_size,
            self._scratch,
            self._device,
            side_by_side=self._side_by_side,
        )
        if len(plan.rows) == 1 and not plan.together:
            plan.rows[0].views.zero_padding()
        return plan

    def routes(self, plan: GroupPlan) -> list[tuple[Route, str]]:
        return [(route, _REASONS.get(route, self._gather_reason)) for route in plan.routes]

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
        if plan.together:
            return self._compute_mixed(plan, store, q, k, v)
        return self._compute_rows(plan, store, q, k, v)

    def _compute_mixed(self, plan: GroupPlan, store: LayerStore, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows that are attended to together, and the others."""
        first = plan.together[0]
        if first.places is None:
            return self._compute_together(first, store, q)
        out = torch.empty(plan.num_tokens, self._spec.num_q_heads, self._spec.v_dim, device=self._device)
        for part in plan.together:
            assert part.places is not None
            out.index_copy_(0, part.places, self._compute_together(part, store, q[part.places]))
        if plan.rows:
            rows = self._compute_rows(plan, store, q, k, v)
            done = 0
            for row in plan.rows:
                out[row.q0 : row.q1] = rows[done : done + row.q1 - row.q0]
                done += row.q1 - row.q0
        return out

    def _compute_together(self, part: SideBySide, store: LayerStore, q: Tensor) -> Tensor:
        keys, values = part.views.keys, part.views.values
        store.blocks.k.read_rows(part.stored, keys)
        store.blocks.v.read_rows(part.stored, values)
        return attend_side_by_side(
            q, keys, values, part.hidden, scale=self._spec.scale, softcap=self._spec.softcap, sinks=store.sinks
        )

    def _compute_rows(self, plan: GroupPlan, store: LayerStore, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        alone = len(plan.routes) == 1
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
                    in_chunks=not self._side_by_side,
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
