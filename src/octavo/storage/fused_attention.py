"""Attention of one group of layers on a GPU by the paged kernels: single tokens, a few tokens, chunks of many.

Owns the block tables on the device; knows neither how a step is cut into work nor the kernels. Rows that keep a ring
are served as by `EagerAttention`.
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
from octavo.kernels.rows import HeadWeights, Rotation
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
    from octavo.kernels.triton.exact_attention import ExactAttention
    from octavo.kernels.triton.paged_decode import DecodeSpec, PagedDecode
    from octavo.kernels.triton.paged_prefill import PagedPrefill
    from octavo.kernels.triton.prefill_plan import PrefillRows

    Kernel = PagedDecode | PagedPrefill | ExactAttention


VERIFY_TOKENS = 8  # of a row that the decode kernel takes as a few queries of one sequence


@dataclass(frozen=True, slots=True)
class FusedPlan:
    """`rows` are where the K/V of the fused tokens go; `tokens` which these are, None if all of them.

    `kernels` are those that have rows. `others` are all other rows, whose packed tokens are `other_tokens`; None where
    there are none.
    """

    num_tokens: int
    rows: Tensor | None
    tokens: Tensor | None
    kernels: tuple[Kernel, ...]
    others: GroupPlan | None
    other_tokens: Tensor | None
    routes: tuple[tuple[Route, str], ...]


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Rows of a step that one kernel serves: their block tables, the place of each one's first token, where its table
    begins on the device, its tokens, and the rotary position of the first.
    """

    tables: list[BlockTable]
    first: NDArray[np.int64]
    begins: NDArray[np.int64]
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(
        cls, rows: list[StepRow], tables: list[BlockTable], first: NDArray[np.int64], begins: NDArray[np.int64]
    ) -> PlacedRows:
        counts = np.array([len(row.token_ids) for row in rows], dtype=np.int64)
        starts = np.array([row.start - row.rope_offset for row in rows], dtype=np.int64)
        return cls(tables, first, begins, counts, starts)

    def chosen(self, mask: NDArray[np.bool_]) -> PlacedRows:
        if mask.all():
            return self
        tables = [self.tables[i] for i in np.flatnonzero(mask)]
        return PlacedRows(tables, self.first[mask], self.begins[mask], self.counts[mask], self.starts[mask])

    def gaps(self, padding: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | tuple[None, None]:
        """`keep` and `skip` of the tables, if any has a gap."""
        if not any(table.skip for table in self.tables):
            return None, None
        keep = np.array([table.keep for table in self.tables], dtype=np.int64)
        skip = np.array([table.skip for table in self.tables], dtype=np.int64)
        return _padded(keep, padding), _padded(skip, padding)


class FusedAttention:
    """Serves what `refusal` lets through."""

    def __init__(
        self,
        spec: LayerSpec,
        store: LayerStore,
        block_size: int,
        device: torch.device,
        staging: StepStaging,
        *,
        exact: bool = False,
    ) -> None:
        """`staging` takes a step's values to the device: what `plan` puts there is sent before any layer computes, and
        `apply` is called between the two. The last block of `store` is no sequence's where steps are padded.

        With `exact` one kernel serves all rows that are not kept in rings, and a row's bits are its own.
        """
        from octavo.kernels.triton.exact_attention import ExactAttention
        from octavo.kernels.triton.head_rows import HeadShape
        from octavo.kernels.triton.paged_decode import PagedDecode
        from octavo.kernels.triton.paged_prefill import PagedPrefill

        self._spec = spec
        self._device = device
        self._eager = EagerAttention(spec, block_size, device, "windowed layers of a dense sequence")
        compiled = _decode_spec(spec, store.codecs, block_size)
        self._decode, self._verify = (PagedDecode(compiled, device, staging) for _ in range(2))
        self._prefill = PagedPrefill(compiled, device, staging)
        self._exact = ExactAttention(compiled, device, staging) if exact else None
        self._heads = HeadShape(spec.num_q_heads, spec.num_kv_heads, spec.k_dim, compiled.k_codec, compiled.v_codec)
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
        routes = [self._route(row) for row in batch.rows]
        ends = np.cumsum([row.num_tokens for row in batch.rows], dtype=np.int64)
        first = ends - np.array([row.num_tokens for row in batch.rows], dtype=np.int64)
        served = [i for i, (route, _) in enumerate(routes) if route is not Route.RING]
        mixed = 0 < len(served) < len(routes)
        others = [row for row, (route, _) in zip(batch.rows, routes, strict=True) if route is Route.RING]
        rest = self._eager.plan(StepBatch(tuple(others)), group, tables) if others else None
        rows = None
        kernels: tuple[Kernel, ...] = ()
        if served:
            mine = [batch.rows[i] for i in served]
            theirs = [tables[row.slot] for row in mine]
            begins = self._tables.update([row.slot for row in mine], theirs, group, len(tables))
            kernels = self._plan_kernels(PlacedRows.of(mine, theirs, first[served], begins))
            rows = self._staging.put(_stored_rows(mine, theirs, group))
        return FusedPlan(
            int(ends[-1]) if len(ends) else 0,
            rows,
            self._staging.put(_tokens(batch, routes, ring=False)) if mixed else None,
            kernels,
            rest,
            self._staging.put(_tokens(batch, routes, ring=True)) if mixed else None,
            tuple(routes),
        )

    def plan_padded(self, batch: StepBatch, group: int, tables: list[BlockTable], num_rows: int) -> FusedPlan:
        """`plan` for single tokens that are not kept in rings, and as many of nothing after them as make `num_rows`.

        What is launched depends on their number and on little else: see `fixture`.
        """
        rows, padding = list(batch.rows), num_rows - len(batch.rows)
        theirs = [tables[row.slot] for row in rows]
        begins = self._tables.update([row.slot for row in rows], theirs, group, len(tables))
        placed = PlacedRows.of(rows, theirs, np.arange(len(rows)), begins)
        kernel: Kernel = self._decode
        if self._exact is None:
            self._plan_queries(self._decode, placed, padding, fixed=True)
        else:
            kernel = self._exact
            self._exact.plan(_chunks(placed, padding), fixed=True)
        spare = [self._spare_row + i % self._block_size for i in range(padding)]
        columns = placed.starts
        keep, skip = placed.gaps(0)
        if keep is not None and skip is not None:
            columns = columns + np.where(columns >= keep, skip, 0)
        places = self._tables.stored_rows(begins, columns, self._block_size)
        stored = self._staging.put(np.concatenate((places, np.array(spare, dtype=np.int64))))
        return FusedPlan(num_rows, stored, None, (kernel,), None, None, tuple([self._route(row) for row in rows]))

    def stage(self) -> None:
        """Put the rest of what a step needs, whose size says nothing of its launches, among what is sent."""
        self._tables.stage(self._staging)

    def apply(self) -> None:
        """After everything was sent."""
        self._tables.apply()

    @property
    def fixture(self) -> tuple[object, ...]:
        """What a captured graph of the planned step has in it: equal ones give the same launches."""
        kernel = self._exact or self._decode
        return *kernel.fixture, self._tables.device_ids.data_ptr()

    def routes(self, plan: FusedPlan) -> tuple[tuple[Route, str], ...]:
        return plan.routes

    def compute(self, plan: FusedPlan, store: LayerStore, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if plan.rows is None:
            assert plan.others is not None
            return self._eager.compute(plan.others, store, q, k, v)
        if plan.tokens is None:
            store.blocks.write(plan.rows, k, v)
        else:
            store.blocks.write(plan.rows, k[plan.tokens], v[plan.tokens])
        packed = q if q.stride(2) == 1 and q.stride(1) == q.shape[2] else q.contiguous()
        out = self._attend(plan, store, packed, torch.float32)
        picked = plan.other_tokens
        if plan.others is not None and picked is not None:
            out.index_copy_(0, picked, self._eager.compute(plan.others, store, q[picked], k[picked], v[picked]))
        return out

    def compute_qkv(
        self,
        plan: FusedPlan,
        store: LayerStore,
        qkv: Tensor,
        rotation: Rotation,
        weights: HeadWeights,
        dtype: torch.dtype,
    ) -> Tensor | None:
        """See `GroupAttention`: one kernel normalises, rotates, encodes and stores; for few single tokens, the one that
        attends.
        """
        if plan.others is not None or self._heads.refusal() is not None:
            return None
        from octavo.kernels.triton.head_rows import rotate_and_store_heads
        from octavo.kernels.triton.projected_decode import attend_projected, projects

        assert plan.rows is not None
        if plan.kernels == (self._decode,) and store.sinks is None and qkv.dim() == 2 and projects(self._decode):
            out = self._empty_output(plan, dtype)
            k, v = store.paged_blocks
            attend_projected(self._decode, qkv, rotation, weights, plan.rows, k, v, self._tables.device_ids, out)
            return out
        q = rotate_and_store_heads(
            self._heads, qkv, rotation, weights.norms, plan.rows, *store.paged_blocks, torch.float32, weights.bias
        )
        return self._attend(plan, store, q, dtype)

    def _attend(self, plan: FusedPlan, store: LayerStore, q: Tensor, dtype: torch.dtype) -> Tensor:
        """Over K and V that are stored already."""
        out = self._empty_output(plan, dtype)
        for kernel in plan.kernels:
            kernel.run(q, *store.paged_blocks, self._tables.device_ids, out, store.sinks)
        return out

    def _empty_output(self, plan: FusedPlan, dtype: torch.dtype) -> Tensor:
        return torch.empty(plan.num_tokens, self._spec.num_q_heads, self._spec.v_dim, dtype=dtype, device=self._device)

    def _route(self, row: StepRow) -> tuple[Route, str]:
        if row.storage is StorageKind.DENSE:
            if self._spec.window is not None:
                return Route.RING, "windowed layers of a dense sequence"
            return Route.DENSE, "dense sequence"
        if self._exact is not None:
            return Route.VARLEN_PREFILL, "exact: one kernel for all rows"
        if row.num_tokens == 1:
            return Route.FUSED_DECODE, "one token"
        if row.num_tokens <= VERIFY_TOKENS:
            return Route.FUSED_VERIFY, "a few tokens"
        return Route.VARLEN_PREFILL, "a chunk"

    def _plan_kernels(self, placed: PlacedRows) -> tuple[Kernel, ...]:
        """Plan each kernel that has rows."""
        if self._exact is not None:
            self._exact.plan(_chunks(placed))
            return (self._exact,)
        counts = placed.counts
        kernels: list[Kernel] = []
        for decode, mask in ((self._decode, counts == 1), (self._verify, (counts > 1) & (counts <= VERIFY_TOKENS))):
            if mask.any():
                self._plan_queries(decode, placed.chosen(mask))
                kernels.append(decode)
        if (counts > VERIFY_TOKENS).any():
            self._prefill.plan(_chunks(placed.chosen(counts > VERIFY_TOKENS)))
            kernels.append(self._prefill)
        return tuple(kernels)

    def _plan_queries(self, decode: PagedDecode, placed: PlacedRows, padding: int = 0, *, fixed: bool = False) -> None:
        """Plan rows of one or a few tokens, and `padding` more that see nothing."""
        from octavo.kernels.triton.decode_plan import DecodeRows, first_visible

        counts, starts = _padded(placed.counts, padding), _padded(placed.starts, padding)
        stop = starts + counts
        keep, skip = placed.gaps(padding)
        columns = stop if keep is None or skip is None else stop + np.where(stop > keep, skip, 0)
        ends_of_first = np.maximum(columns - counts + 1, 0) if len(counts) else columns
        num_rows = len(placed.first)
        decode.plan(
            DecodeRows(
                first_query=np.concatenate((placed.first, np.arange(num_rows, num_rows + padding))),
                num_queries=counts,
                first_column=first_visible(ends_of_first, self._spec.window, keep, skip),
                columns=columns,
                table_begin=_padded(placed.begins, padding),
                keep=keep,
                skip=skip,
            ),
            fixed=fixed,
        )


def _tokens(batch: StepBatch, routes: list[tuple[Route, str]], *, ring: bool) -> NDArray[np.int64]:
    """Places of the tokens that go to rings, or of the others."""
    counts = [row.num_tokens for row in batch.rows]
    picked = np.repeat([(route is Route.RING) == ring for route, _ in routes], counts)
    return np.flatnonzero(picked).astype(np.int64)


def _chunks(placed: PlacedRows, padding: int = 0) -> PrefillRows:
    """The rows for kernels that take any number of tokens of each, and `padding` more of none."""
    from octavo.kernels.triton.prefill_plan import PrefillRows

    keep, skip = placed.gaps(padding)
    return PrefillRows(
        first_query=_padded(placed.first, padding),
        num_tokens=_padded(placed.counts, padding),
        start=_padded(placed.starts, padding),
        table_begin=_padded(placed.begins, padding),
        keep=keep,
        skip=skip,
    )


def _stored_rows(rows: list[StepRow], tables: list[BlockTable], group: int) -> NDArray[np.int64]:
    """Where the tokens of the rows are stored, whose tables these are."""
    if all(row.num_tokens == 1 for row in rows):
        stored = [table.stored_row(group, row.rope_start) for row, table in zip(rows, tables, strict=True)]
        return np.array(stored, dtype=np.int64)
    pairs = zip(rows, tables, strict=True)
    return np.concatenate([table.slot_mapping(group, row.rope_start, row.rope_stop) for row, table in pairs])


def _padded(values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.concatenate((values, np.zeros(count, dtype=np.int64))) if count else values


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
