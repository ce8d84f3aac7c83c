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
from octavo.kernels.step_staging import StepStaging
from octavo.step_batch import StepBatch, StepRow, StorageKind
from octavo.storage.block_table import BlockTable
from octavo.storage.codecs import Codec
from octavo.storage.device_tables import DeviceTables
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

    def __init__(
        self, spec: LayerSpec, store: LayerStore, block_size: int, device: torch.device, staging: StepStaging
    ) -> None:
        """`staging` takes a step's values to the device: what `plan` puts there is sent before any layer computes, and
        `apply` is called between the two. The last block of `store` is no sequence's where steps are padded.
        """
        from octavo.kernels.triton.paged_decode import PagedDecode

        self._spec = spec
        self._device = device
        self._eager = EagerAttention(spec, block_size, device, "more than one token")
        self._decode = PagedDecode(_decode_spec(spec, store.codecs, block_size), device, staging)
        self._staging = staging
        self._block_size = block_size
        self._spare_row = len(next(iter(store.blocks.k.planes().values()))) - block_size
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
        rows = self._plan_decode(fused, tokens, group, tables) if fused else None
        mixed = fused and others
        return FusedPlan(
            q0,
            rows,
            self._staging.put(np.array(tokens)) if mixed else None,
            rest,
            self._staging.put(np.array(other_tokens)) if mixed else None,
            routes,
        )

    def plan_padded(self, batch: StepBatch, group: int, tables: list[BlockTable], num_rows: int) -> FusedPlan:
        """`plan` for single tokens of paged rows, and as many of nothing after them as make `num_rows`.

        What is launched depends on their number and on little else: see `fixture`.
        """
        rows = list(batch.rows)
        stored = self._plan_decode(rows, list(range(len(rows))), group, tables, num_rows - len(rows), fixed=True)
        return FusedPlan(num_rows, stored, None, None, None, ((Route.FUSED_DECODE, "one token"),) * len(rows))

    def stage(self) -> None:
        """Put the rest of what a step needs, whose size says nothing of its launches, among what is sent."""
        self._tables.stage(self._staging)

    def apply(self) -> None:
        """After everything was sent."""
        self._tables.apply()

    @property
    def fixture(self) -> tuple[object, ...]:
        """What a captured graph of the planned step has in it: equal ones give the same launches."""
        return *self._decode.fixture, self._tables.device_ids.data_ptr()

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

    def _plan_decode(
        self,
        rows: list[StepRow],
        tokens: list[int],
        group: int,
        tables: list[BlockTable],
        padding: int = 0,
        *,
        fixed: bool = False,
    ) -> Tensor:
        """Plan single tokens at the places `tokens` of the step; returns the stored row of each.

        `padding` more see nothing, and are stored where nobody looks.
        """
        from octavo.kernels.triton.decode_plan import DecodeRows, first_visible

        theirs = [tables[row.slot] for row in rows]
        begins = self._tables.update([row.slot for row in rows], theirs, group, len(tables))
        stop = _padded([row.rope_stop for row in rows], padding)
        keep = skip = None
        columns = stop
        if any(table.skip for table in theirs):
            keep, skip = (_padded(values, padding) for values in ([t.keep for t in theirs], [t.skip for t in theirs]))
            columns = stop + np.where(stop > keep, skip, 0)
        self._decode.plan(
            DecodeRows(
                first_query=np.array([*tokens, *range(len(tokens), len(tokens) + padding)]),
                num_queries=_padded([1] * len(rows), padding),
                first_column=first_visible(columns, self._spec.window, keep, skip),
                columns=columns,
                table_begin=np.concatenate((begins, np.zeros(padding, dtype=np.int64))),
                keep=keep,
                skip=skip,
            ),
            fixed=fixed,
        )
        stored = [table.stored_row(group, row.rope_start) for row, table in zip(rows, theirs, strict=True)]
        spare = [self._spare_row + i % self._block_size for i in range(padding)]
        return self._staging.put(np.array(stored + spare, dtype=np.int64))


def _padded(values: list[int], count: int) -> NDArray[np.int64]:
    return np.array(values + [0] * count, dtype=np.int64)


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
