"""The seam: the only place where storage and kernels meet. Models call `attend` and know nothing of either."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.kernels.chunked_attention import attend_span, smallest_invariant_rows
from octavo.step_batch import StepBatch
from octavo.storage.block_table import BlockTable
from octavo.storage.codec import Codec
from octavo.storage.layer_store import KVRows, LayerStore
from octavo.storage.plan import BlockWrites, GroupPlan, RingPlan, RowPlan, plan_group
from octavo.storage.route import Route, RouteCounts, RouteSwitches
from octavo.storage.scratch import Scratch

_REASONS = {Route.DENSE: "dense sequence", Route.RING: "windowed layers of a dense sequence"}


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
    ) -> None:
        self.routes = RouteCounts()
        self._switches = RouteSwitches.from_environment()
        self._groups = tuple(groups)
        self._block_size = block_size
        self._codecs = codecs
        self._device = device
        self._scratch = [Scratch(group.spec, device) for group in groups]
        self._min_rows = [_min_rows(group.spec, device) for group in groups]
        max_blocks = -(-max_context // block_size)
        self._tables = [BlockTable(len(groups), max_blocks, block_size) for _ in range(max_seqs)]
        self._group_of = {layer: g for g, group in enumerate(groups) for layer in group.layers}
        self._layers: dict[int, LayerStore] = {}
        for g, group in enumerate(groups):
            assert group.spec.kind in ("full", "sliding"), f"no route for {group.spec}"
            assert not group.spec.sink_logits, f"no route for {group.spec}"
            window = group.spec.window
            for layer in group.layers:
                blocks = KVRows.allocate(group.spec, num_blocks[g] * block_size, *codecs, device)
                ring = KVRows.allocate(group.spec, max_seqs * window, *codecs, device) if window and rings else None
                self._layers[layer] = LayerStore(blocks, ring)
        self._plans: list[GroupPlan] = []
        if self._switches.deterministic and device.type == "cuda":
            torch.use_deterministic_algorithms(True)

    def plan(self, batch: StepBatch) -> None:
        """Route the rows of the next step and count the routes. Valid until the next call."""
        for row in batch.rows:
            self._tables[row.slot].update(row)
        self._plans = [
            plan_group(batch, g, group.spec, self._tables, self._block_size, self._scratch[g], self._device)
            for g, group in enumerate(self._groups)
        ]
        for plan in self._plans:
            if len(plan.rows) == 1:
                plan.rows[0].views.zero_padding()
            for planned in plan.rows:
                reason = _REASONS.get(planned.route) or self._switches.gather_reason(self._device.type)
                self.routes.add(planned.route, reason)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v, then attend causally, each row within its own sequence.

        q [T, Hq, Dk], k [T, Hkv, Dk], v [T, Hkv, Dv], packed as the planned batch; returns float32 [T, Hq, Dv].
        """
        group = self._group_of[layer]
        plan = self._plans[group]
        spec = self._groups[group].spec
        store = self._layers[layer]
        if plan.writes is not None:
            _write_blocks(store.blocks, plan.writes, k, v)
        alone = len(plan.rows) == 1
        outputs = []
        for row in plan.rows:
            self._read(row, store, k, v)
            if not alone:  # a row that has the workspace to itself was padded when the step was planned
                row.views.zero_padding()
            query = q if alone else q[row.q0 : row.q1]
            outputs.append(
                attend_span(
                    query,
                    row.views.keys,
                    row.views.values,
                    row.span,
                    scale=spec.scale,
                    softcap=spec.softcap,
                    min_rows=self._min_rows[group],
                )
            )
        return outputs[0] if alone else torch.cat(outputs)

    def _read(self, row: RowPlan, store: LayerStore, k: Tensor, v: Tensor) -> None:
        """Decode the row's keys and values into its views, in position order. k and v are the step's own."""
        keys, values = row.views.key_target, row.views.value_target
        if row.route is Route.DENSE:
            start, stop = row.base + row.read_start, row.base + row.span.hi
            store.blocks.k.read(start, stop, keys)
            store.blocks.v.read(start, stop, values)
        elif row.block_ids is not None:
            store.blocks.k.read_blocks(row.block_ids, self._block_size, keys)
            store.blocks.v.read_blocks(row.block_ids, self._block_size, values)
        else:
            assert store.ring is not None
            assert row.ring is not None
            self._read_ring(row, row.ring, store.ring, k[row.q0 : row.q1], v[row.q0 : row.q1])
            store.ring.write(row.ring.rows, k[row.ring.first_token : row.q1], v[row.ring.first_token : row.q1])

    def _read_ring(self, row: RowPlan, ring: RingPlan, store: KVRows, k: Tensor, v: Tensor) -> None:
        """Older tokens from the ring, which the step's own tokens are about to overwrite, then those tokens.

        ring:  | … newest old | oldest still needed … |      position p lies at p mod window
        """
        keys, values = row.views.key_target, row.views.value_target
        position = row.read_start
        while position < row.start:
            offset = position % ring.window
            length = min(row.start - position, ring.window - offset)
            at = position - row.read_start
            start = ring.base + offset
            store.k.read(start, start + length, keys[:, at : at + length])
            store.v.read(start, start + length, values[:, at : at + length])
            position += length
        k_codec, v_codec = self._codecs
        fresh = row.start - row.read_start
        keys[:, fresh:].copy_(k_codec.round_trip(k).transpose(0, 1))
        values[:, fresh:].copy_(v_codec.round_trip(v).transpose(0, 1))


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
