"""Attention of one group of layers by the compiled kernels: straight from blocks and rings, without a gathered copy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.chunked_attention import AttentionSpan, bare_span
from octavo.kernels.cpu.attention import AttentionKernel, AttentionStep, Placement, StoredRows
from octavo.kernels.rows import HeadWeights, Rotation
from octavo.step_batch import StepBatch, StepRow, StorageKind
from octavo.storage.block_table import BlockTable
from octavo.storage.codecs import Codec
from octavo.storage.layer_store import LayerStore
from octavo.storage.plan import RowPlan, gather_plan, ring_plan
from octavo.storage.route import Route
from octavo.storage.scratch import Scratch
from octavo.storage.staging import stage


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A row whose keys and values are decoded into scratch before they are attended to."""

    row: RowPlan
    step: AttentionStep


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """Rows by what is done for them; None where there are none.

    `written` are stored in blocks; of these, `direct` are attended where they lie. `rings` are single tokens of
    windowed layers, stored and attended in their ring.
    """

    num_tokens: int
    written: AttentionStep | None
    direct: AttentionStep | None
    rings: AttentionStep | None
    staged: tuple[StagedRow, ...]
    routes: tuple[tuple[Route, str], ...]

    @property
    def single(self) -> AttentionStep | None:
        """What stores and attends all tokens where they lie, if one thing does."""
        if self.staged or (self.direct is not None and self.rings is not None):
            return None
        return self.direct or self.rings


class CompiledAttention:
    """Serves what `refusal` lets through. `gather_reason`: why paged rows are gathered all the same, or None."""

    def __init__(self, spec: LayerSpec, block_size: int, gather_reason: str | None) -> None:
        self._spec = spec
        self._block_size = block_size
        self._gather_reason = gather_reason
        self.kernel = AttentionKernel(spec.num_q_heads, spec.num_kv_heads, spec.scale, spec.window, spec.softcap)
        self._scratch = Scratch(spec, torch.device("cpu"))

    @staticmethod
    def refusal(spec: LayerSpec, store: LayerStore, device: torch.device) -> str | None:
        """Why this group cannot be served; None if it can."""
        return CompiledAttention.refusal_for(spec, store.codecs, device)

    @staticmethod
    def refusal_for(spec: LayerSpec, codecs: tuple[Codec, Codec], device: torch.device) -> str | None:
        """`refusal`, before there is any storage."""
        if device.type != "cpu":
            return f"no fused kernel on {device.type}"
        k_codec, v_codec = codecs
        one_row = k_codec.allocate(1, 1, spec.k_dim, device), v_codec.allocate(1, 1, spec.v_dim, device)
        if any(rows.for_kernels() is None for rows in one_row):
            return f"no fused kernel for {k_codec.name} keys and {v_codec.name} values"
        return AttentionKernel.refusal(spec.num_q_heads, spec.num_kv_heads, spec.k_dim, spec.v_dim)

    @property
    def has_equal_widths(self) -> bool:
        """Whether one projection can give keys and values."""
        return self._spec.k_dim == self._spec.v_dim

    def plan(self, batch: StepBatch, group: int, tables: list[BlockTable]) -> CompiledPlan:
        written, direct, rings, staged, routes = [], [], [], [], []
        q0 = 0
        for row in batch.rows:
            q1 = q0 + row.num_tokens
            if row.storage is StorageKind.DENSE and self._spec.window is not None:
                routes.append((Route.RING, "windowed layers of a dense sequence"))
                if row.num_tokens == 1:
                    window = self._spec.window
                    rings.append(Placement(q0, q1, row.rope_start, base=row.slot * window, ring=window))
                else:
                    staged.append(self._staged_ring(row, q0, self._spec.window))
            elif row.storage is StorageKind.DENSE:
                routes.append((Route.DENSE, "dense sequence"))
                base = int(tables[row.slot].blocks_before(group, 1)[0]) * self._block_size
                place = Placement(q0, q1, row.rope_start, base=base)
                written.append(place)
                direct.append(place)
            else:
                table = tables[row.slot]
                blocks = table.blocks_before(group, row.rope_stop)
                place = Placement(q0, q1, row.rope_start, blocks, self._block_size, 0, 0, table.keep, table.skip)
                written.append(place)
                if self._gather_reason is None:
                    fused = row.num_tokens == 1
                    routes.append((Route.FUSED_DECODE, "one token") if fused else (Route.VARLEN_PREFILL, "a chunk"))
                    direct.append(place)
                else:
                    routes.append((Route.GATHER, self._gather_reason))
                    span = bare_span(row.rope_start, row.rope_stop, self._spec.window)
                    gathered = gather_plan(row, q0, group, table, span, self._scratch, torch.device("cpu"))
                    staged.append(_staged(gathered, span))
            q0 = q1
        stored = _step(written)
        attended = stored if len(direct) == len(written) else _step(direct)
        return CompiledPlan(q0, stored, attended, _step(rings), tuple(staged), tuple(routes))

    def routes(self, plan: CompiledPlan) -> tuple[tuple[Route, str], ...]:
        return plan.routes

    def compute(self, plan: CompiledPlan, store: LayerStore, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kernel = self.kernel
        out = torch.empty(plan.num_tokens, self._spec.num_q_heads, self._spec.v_dim)
        q, k, v = _packed_heads(q), _packed_heads(k), _packed_heads(v)
        keys, values = store.kernel_blocks
        if plan.written is not None:
            kernel.store(k, keys, plan.written)
            kernel.store(v, values, plan.written)
        if plan.direct is not None:
            kernel.run(q, keys, values, plan.direct, out, store.sinks)
        if plan.rings is not None:
            ring_keys, ring_values = store.kernel_ring
            kernel.store(k, ring_keys, plan.rings)
            kernel.store(v, ring_values, plan.rings)
            kernel.run(q, ring_keys, ring_values, plan.rings, out, store.sinks)
        for staged in plan.staged:
            stage(staged.row, store, self._block_size, k, v)
            views = staged.row.views
            rows = StoredRows(views.keys.transpose(0, 1)), StoredRows(views.values.transpose(0, 1))
            kernel.run(q, *rows, staged.step, out, store.sinks)
        return out

    def compute_qkv(
        self,
        plan: CompiledPlan,
        store: LayerStore,
        qkv: Tensor,
        rotation: Rotation,
        weights: HeadWeights,
        dtype: torch.dtype,
    ) -> Tensor | None:
        """See `GroupAttention`."""
        step, spec = plan.single, self._spec
        if step is None or not self.has_equal_widths:
            return None
        biased = qkv if weights.bias is None else qkv + weights.bias
        heads = biased.float().contiguous().view(plan.num_tokens, -1, spec.k_dim)
        out = torch.empty(plan.num_tokens, spec.num_q_heads, spec.v_dim)
        keys, values = store.kernel_ring if step is plan.rings else store.kernel_blocks
        self.kernel.run_qkv(heads, (rotation.cos, rotation.sin), weights.norms, keys, values, step, out, store.sinks)
        return out.to(dtype)

    def _staged_ring(self, row: StepRow, q0: int, window: int) -> StagedRow:
        span = bare_span(row.start, row.stop, window)
        ring = ring_plan(row, window, q0, torch.device("cpu"))
        views = self._scratch.views(span, span.lo)
        return _staged(RowPlan(q0, q0 + row.num_tokens, Route.RING, span, views, row.start, span.lo, ring=ring), span)


def _staged(row: RowPlan, span: AttentionSpan) -> StagedRow:
    # Scratch begins with position `span.first_key`.
    return StagedRow(row, AttentionStep([Placement(row.q0, row.q1, row.start, base=-span.first_key)]))


def _step(placements: list[Placement]) -> AttentionStep | None:
    return AttentionStep(placements) if placements else None


def _packed_heads(x: Tensor) -> Tensor:
    """x [T, H, D] with a token's heads one after another, as the kernels take them; float32."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
