"""Attention of one group of layers on a GPU: single tokens by the fused paged decode, the others as `EagerAttention`.

Owns the block tables on the device; knows neither how a step is cut into work nor the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.step_batch import StepBatch, StepRow, StorageKind
from octavo.storage.block_table import BlockTable
from octavo.storage.codecs import Codec
from octavo.storage.eager_attention import EagerAttention
from octavo.storage.layer_store import LayerStore
from octavo.storage.plan import GroupPlan
from octavo.storage.route import Route

if TYPE_CHECKING:
    from octavo.kernels.triton.paged_decode import DecodeSpec


@dataclass(frozen=True, slots=True)
class FusedPlan:
    """`rows` are where the K/V of the fused tokens go; `tokens` which these are, None if all of them.

    `others` are all other rows, whose packed tokens are `other_tokens`; None where there are none.
    """

    num_tokens: int
    rows: Tensor | None
    tokens: Tensor | None
    others: GroupPlan | None
    other_tokens: Tensor | None
    routes: tuple[tuple[Route, str], ...]


class FusedAttention:
    """Serves what `refusal` lets through."""

    def __init__(self, spec: LayerSpec, store: LayerStore, block_size: int, device: torch.device) -> None:
        from octavo.kernels.triton.paged_decode import PagedDecode

        self._spec = spec
        self._device = device
        self._eager = EagerAttention(spec, block_size, device, "more than one token")
        self._decode = PagedDecode(_decode_spec(spec, store.codecs, block_size), device)
        self._tables = DeviceTables(device)

    @staticmethod
    def refusal(spec: LayerSpec, codecs: tuple[Codec, Codec], block_size: int, device: torch.device) -> str | None:
        """Why such a group cannot be served; None if it can."""
        if device.type != "cuda":
            return f"no fused kernel on {device.type}"
        if find_spec("triton") is None:
            return "triton is not installed"
        if spec.softcap is not None:
            return "no fused kernel for capped scores"
        if "f32" in [codec.name for codec in codecs]:
            return "no fused kernel for float32 keys or values"
        return _decode_spec(spec, codecs, block_size).refusal()

    def plan(self, batch: StepBatch, group: int, tables: list[BlockTable]) -> FusedPlan:
        fused: list[StepRow] = []
        others: list[StepRow] = []
        tokens: list[int] = []
        other_tokens: list[int] = []
        is_fused = [row.storage is StorageKind.PAGED and row.num_tokens == 1 for row in batch.rows]
        q0 = 0
        for row, single in zip(batch.rows, is_fused, strict=True):
            (fused if single else others).append(row)
            (tokens if single else other_tokens).extend(range(q0, q0 + row.num_tokens))
            q0 += row.num_tokens
        rest = self._eager.plan(StepBatch(tuple(others)), group, tables) if others else None
        rest_routes = iter(self._eager.routes(rest)) if rest is not None else iter(())
        routes = tuple((Route.FUSED_DECODE, "one token") if single else next(rest_routes) for single in is_fused)
        rows = None
        if fused:
            self._plan_decode(fused, tokens, group, tables)
            mapping = [tables[row.slot].slot_mapping(group, row.rope_start, row.rope_stop) for row in fused]
            rows = self._upload(np.concatenate(mapping))
        mixed = fused and others
        return FusedPlan(
            q0,
            rows,
            self._upload(np.array(tokens)) if mixed else None,
            rest,
            self._upload(np.array(other_tokens)) if mixed else None,
            routes,
        )

    def routes(self, plan: FusedPlan) -> tuple[tuple[Route, str], ...]:
        return plan.routes

    def compute(self, plan: FusedPlan, store: LayerStore, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from octavo.kernels.triton.paged_decode import StoredRows

        if plan.rows is None:
            assert plan.others is not None
            return self._eager.compute(plan.others, store, q, k, v)
        out = torch.empty(plan.num_tokens, self._spec.num_q_heads, self._spec.v_dim, device=self._device)
        if plan.tokens is None:
            store.blocks.write(plan.rows, k, v)
        else:
            store.blocks.write(plan.rows, k[plan.tokens], v[plan.tokens])
        packed = q if q.stride(2) == 1 and q.stride(1) == q.shape[2] else q.contiguous()
        keys, values = StoredRows.of(store.blocks.k.planes()), StoredRows.of(store.blocks.v.planes())
        self._decode.run(packed, keys, values, self._tables.device_ids, out, store.sinks)
        picked = plan.other_tokens
        if plan.others is not None and picked is not None:
            out.index_copy_(0, picked, self._eager.compute(plan.others, store, q[picked], k[picked], v[picked]))
        return out

    def _plan_decode(self, rows: list[StepRow], tokens: list[int], group: int, tables: list[BlockTable]) -> None:
        from octavo.kernels.triton.decode_plan import DecodeRows, first_visible

        begins = self._tables.update([row.slot for row in rows], [tables[row.slot] for row in rows], group, len(tables))
        keep = np.array([tables[row.slot].keep for row in rows])
        skip = np.array([tables[row.slot].skip for row in rows])
        stop = np.array([row.rope_stop for row in rows])
        columns = stop + np.where(stop > keep, skip, 0)
        shifted = bool(skip.any())
        gap = {"keep": keep, "skip": skip} if shifted else {}
        self._decode.plan(
            DecodeRows(
                first_query=np.array(tokens),
                num_queries=np.ones(len(rows), dtype=np.int64),
                first_column=first_visible(columns, self._spec.window, gap.get("keep"), gap.get("skip")),
                columns=columns,
                table_begin=begins,
                **gap,
            )
        )

    def _upload(self, values: NDArray[np.int64]) -> Tensor:
        host = torch.from_numpy(values)
        if self._device.type != "cuda":
            return host.to(self._device)
        return host.pin_memory().to(self._device, non_blocking=True)


class DeviceTables:
    """Block ids of all slots of one group in one flat int32 tensor, in which every slot owns a fixed span.

    Only ids that changed are uploaded, in stream order; `uploaded_bytes` counts them with their places.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._span = 0
        self._ids: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self.device_ids = torch.zeros(0, dtype=torch.int32, device=device)
        self.uploaded_bytes = 0

    def update(self, slots: list[int], tables: list[BlockTable], group: int, num_slots: int) -> NDArray[np.int64]:
        """Take over the tables of `slots`; returns where each begins."""
        columns = [table.columns(group) for table in tables]
        if len(self._ids) != num_slots * len(columns[0]):
            self._span = len(columns[0])
            self._ids = np.zeros(num_slots * self._span, dtype=np.int32)
            self.device_ids = torch.zeros(num_slots * self._span, dtype=torch.int32, device=self._device)
        changed = []
        for slot, ids in zip(slots, columns, strict=True):
            begin = slot * self._span
            places = np.flatnonzero(self._ids[begin : begin + self._span] != ids)
            self._ids[begin + places] = ids[places]
            changed.append(begin + places)
        places = np.concatenate(changed)
        if len(places):
            update = torch.from_numpy(np.stack((places, self._ids[places].astype(np.int64))))
            if self._device.type == "cuda":
                update = update.pin_memory()
            placed = update.to(self._device, non_blocking=True)
            self.device_ids.index_copy_(0, placed[0], placed[1].int())
            self.uploaded_bytes += update.nbytes
        return np.array(slots) * self._span


def _decode_spec(spec: LayerSpec, codecs: tuple[Codec, Codec], block_size: int) -> DecodeSpec:
    from octavo.kernels.triton.paged_decode import DecodeSpec

    k_codec, v_codec = codecs
    return DecodeSpec(
        spec.num_q_heads,
        spec.num_kv_heads,
        spec.k_dim,
        spec.v_dim,
        block_size,
        k_codec.name,
        v_codec.name,
        scale=spec.scale,
        window=spec.window,
    )
