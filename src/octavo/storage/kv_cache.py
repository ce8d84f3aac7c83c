"""The seam: the only place where storage and kernels meet. Models call `attend` and know nothing of either."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.cache.refusals import InvalidArgument
from octavo.cache.sequence import SequenceState
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.errors import EngineFault, InvalidRequest
from octavo.kernels.cpu.blocks import AttentionCall
from octavo.kernels.rows import HeadWeights, Rotation, split_heads
from octavo.kernels.step_staging import StepStaging
from octavo.step_batch import BlockCopy, StepBatch, StepRow, StorageKind
from octavo.storage.block_memory import allocate_layers
from octavo.storage.block_table import BlockTable
from octavo.storage.codecs import Codec
from octavo.storage.compiled_attention import CompiledAttention
from octavo.storage.eager_attention import EagerAttention
from octavo.storage.fused_attention import FusedAttention
from octavo.storage.group_attention import GroupAttention
from octavo.storage.hand_off import GroupMover, check_codecs
from octavo.storage.layer_store import LayerStore
from octavo.storage.layers_call import LayersCall
from octavo.storage.ring_state import RingState, read_rings, write_rings
from octavo.storage.route import RouteCounts, RouteSwitches
from octavo.storage.shift import InverseFrequencies, check_codec, check_frequencies, check_row, rotate_back
from octavo.storage.snapshot import KVSnapshot, ModelIdentity
from octavo.storage.undo import DecodeLookahead, UndoLog


@dataclass(frozen=True, slots=True)
class PaddedPlan:
    """`values` are on the device what was given to go along. Steps of equal `fixture` give the same launches with the
    same arguments, so that a captured one serves them all; None for a step that shares its launches with no other.
    """

    values: tuple[Tensor, ...]
    fixture: tuple[object, ...] | None


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
        """Without `rings` all sequences are paged. `switches` are the environment's unless given."""
        self.routes = RouteCounts()
        switches = switches or RouteSwitches.from_environment()
        max_blocks = -(-max_context // block_size)
        self._groups = tuple(groups)
        self._block_size = block_size
        self._device = device
        self._group_of = {layer: g for g, group in enumerate(groups) for layer in group.layers}
        self._layers: dict[int, LayerStore] = {}
        self._attention: list[GroupAttention] = []
        self.staging = StepStaging(device)
        for g, group in enumerate(groups):
            assert group.spec.kind in ("full", "sliding"), f"no route for {group.spec}"
            ring_rows = max_seqs * (group.spec.window or 0) if rings else 0
            blocks = num_blocks[g] + spare_blocks(device)
            stores = allocate_layers(group, blocks, block_size, codecs, device, ring_rows=ring_rows, has_runs=rings)
            self._layers |= zip(group.layers, stores, strict=True)
            store = stores[0]
            self._attention.append(_group_attention(group.spec, store, block_size, device, switches, self.staging))
        strides = [self._layers[group.layers[0]].stride for group in groups]
        self._tables = [BlockTable(len(groups), max_blocks, block_size, strides) for _ in range(max_seqs)]
        self._call = LayersCall(self._attention, self._layers, self._group_of)
        self._fused = [attention for attention in self._attention if isinstance(attention, FusedAttention)]
        self._without_sinks = {layer for group in groups if group.spec.sink_logits for layer in group.layers}
        self._rings = {
            layer: (window, ring)
            for group in groups
            for layer in group.layers
            if (window := group.spec.window) is not None and (ring := self._layers[layer].ring) is not None
        }
        self._undo = UndoLog(list(self._rings.values()), max_seqs)
        self._frequencies: dict[int, Tensor] = {}
        # Per slot: generation, and serials of the copies made for it.
        self._copied: dict[int, tuple[int, set[int]]] = {}
        self._plans: list[Any] = []
        self._codec_names = (codecs[0].name, codecs[1].name)
        self._movers = [
            GroupMover(group, g, block_size, [self._layers[layer] for layer in group.layers])
            for g, group in enumerate(groups)
        ]
        if switches.deterministic and device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS promises nothing
            torch.use_deterministic_algorithms(True, warn_only=True)  # torch has no such kernel for some sums

    def set_sinks(self, layer: int, sinks: Tensor) -> None:
        """Give a layer whose spec has `sink_logits` its learned logits [Hq]: once, before the first step.

        They join each softmax and add no value. Raises `EngineFault` for another layer or shape.
        """
        group = self._group_of.get(layer)
        spec = None if group is None else self._groups[group].spec
        if spec is None or not spec.sink_logits or sinks.shape != (spec.num_q_heads,):
            raise EngineFault(
                f"layer {layer} is given sink logits of shape {tuple(sinks.shape)}; "
                "give one per query head, to layers whose spec has sink_logits"
            )
        store = self._layers[layer]
        owned = sinks.detach().to(self._device, torch.float32, copy=True).contiguous()
        self._layers[layer] = replace(store, sinks=owned)
        self._without_sinks.discard(layer)
        self._call.forget()

    def plan(self, batch: StepBatch, beside: Sequence[NDArray[np.int64]] = ()) -> tuple[Tensor, ...]:
        """Make the step's copies of blocks, route its rows and count the routes. Valid until the next call, as is what
        was given `beside`, which goes to the device with the plan, in one copy, and is returned.

        A row whose `rope_offset` has risen since its last step was shifted: all its stored keys but the kept tokens'
        are rotated back first. Raises `EngineFault` while a layer lacks its sink logits or a shifted row its rotation,
        `InvalidRequest` or `InvalidArgument` for a shift that cannot be; then nothing has changed.
        """
        self._prepare(batch)
        self.staging.begin()
        values = tuple([self.staging.put(each) for each in beside])
        self._plans = [attention.plan(batch, g, self._tables) for g, attention in enumerate(self._attention)]
        self._send()
        return values

    def padding_refusal(self, batch: StepBatch) -> str | None:
        """Why a step cannot be padded; None if `plan_padded` serves it."""
        if len(self._fused) != len(self._attention):
            return "not all layers have a fused kernel"
        has_windows = any(group.spec.window is not None for group in self._groups)
        for row in batch.rows:
            if row.num_tokens != 1:
                return "a row of several tokens"
            if has_windows and row.storage is StorageKind.DENSE:
                return "windowed layers of a dense sequence"
        return None

    def plan_padded(self, batch: StepBatch, num_rows: int, beside: Sequence[NDArray[np.int64]]) -> PaddedPlan:
        """`plan` for a step that `padding_refusal` lets through, padded to `num_rows`: token i of the step is row i's.

        `beside` goes to the device with the plan, in one copy. Raises as `plan` does.
        """
        self._prepare(batch)
        self.staging.begin()
        values = tuple([self.staging.put(each) for each in beside])
        self._plans = [fused.plan_padded(batch, g, self._tables, num_rows) for g, fused in enumerate(self._fused)]
        spilled = self.staging.spilled
        self._send()
        fixture = (num_rows, *(each.data_ptr() for each in values), *(fused.fixture for fused in self._fused))
        return PaddedPlan(values, None if spilled else fixture)

    def _send(self) -> None:
        """Have the device take over what was planned, and count its routes."""
        for fused in self._fused:
            fused.stage()
        self.staging.send()
        for fused in self._fused:
            fused.apply()
        for attention, plan in zip(self._attention, self._plans, strict=True):
            for (route, reason), rows in groupby(attention.routes(plan)):
                self.routes.add(route, reason, len(list(rows)))

    def _prepare(self, batch: StepBatch) -> None:
        """What comes before a step is planned, whatever its routes. Raises as `plan` does."""
        if self._without_sinks:
            raise EngineFault(f"layer {min(self._without_sinks)} has no sink logits yet; call set_sinks before a step")
        rises = self._rises(batch)
        owned = batch.copies_by_row()
        for row, copies in owned:
            made = self._made_copies(row)
            for copy in copies:
                if copy.serial not in made:
                    self._copy_block(copy)
        for row in batch.rows:
            self._tables[row.slot].update(row)
        for row, delta in rises:
            self._rotate_back(row, delta)
        for row, copies in owned:
            self._copied[row.slot] = (row.generation, self._made_copies(row) | {copy.serial for copy in copies})
        self._undo.follow(batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v, then attend causally, each row within its own sequence.

        q [T, Hq, Dk], k [T, Hkv, Dk], v [T, Hkv, Dv], packed as the planned batch; returns float32 [T, Hq, Dv].
        """
        group = self._group_of[layer]
        return self._attention[group].compute(self._plans[group], self._layers[layer], q, k, v)

    def attend_qkv(
        self, layer: int, qkv: Tensor, rotation: Rotation, weights: HeadWeights, dtype: torch.dtype
    ) -> Tensor:
        """`attend` for the q, k and v of one projection, once these are biased, normalised and rotated.

        qkv [T, (Hq + 2 Hkv) · D] of any floating dtype, which may be overwritten, or parts [S, T, ...] that add up to
        it; returns [T, Hq, D] in `dtype`.
        """
        group = self._group_of[layer]
        plan, attention, spec = self._plans[group], self._attention[group], self._groups[group].spec
        attended = attention.compute_qkv(plan, self._layers[layer], qkv, rotation, weights, dtype)
        if attended is not None:
            return attended
        q, k, v = split_heads(qkv, spec.num_q_heads, spec.num_kv_heads, spec.k_dim, rotation, weights)
        return self.attend(layer, q, k, v).to(dtype)

    def attention_call(self) -> AttentionCall | None:
        """`attend_qkv` of all layers as a part of one call, see `CallableCache`."""
        return self._call.of(self._plans)

    def _made_copies(self, row: StepRow) -> set[int]:
        """Serials of those made for the row's sequence, by a step that failed too. To make one again would bring back
        keys as they were before a context shift.
        """
        generation, serials = self._copied.get(row.slot, (None, set()))
        return serials if generation == row.generation else set()

    def _copy_block(self, copy: BlockCopy) -> None:
        for layer in self._groups[copy.group].layers:
            store = self._layers[layer]
            size = store.stride * self._block_size
            source, target = copy.source * size, copy.target * size
            for plane in (*store.blocks.k.planes().values(), *store.blocks.v.planes().values()):
                plane[target : target + self._block_size] = plane[source : source + self._block_size]

    def export(self, sequence: SequenceState, token_ids: Sequence[int], model: ModelIdentity) -> KVSnapshot:
        """A copy of all that `sequence` holds: the K/V of `token_ids`, which are all tokens written so far.

        Call it between steps. `model` goes into the snapshot.
        """
        offset = self._tables[sequence.handle.slot].rope_offset
        assert sequence.rope_offset == offset, (
            f"rotated by {offset} of {sequence.rope_offset} positions: shift it first"
        )
        assert len(token_ids) == sequence.written, f"{len(token_ids)} ids for {sequence.written} written tokens"
        groups = tuple(mover.export(sequence) for mover in self._movers)
        return KVSnapshot(model, self._codec_names, tuple(token_ids), sequence.rope_offset, groups)

    def check(self, snapshot: KVSnapshot) -> None:
        """Raises `InvalidRequest` unless `snapshot` has this cache's geometry and codecs. Looks at no model."""
        check_codecs(snapshot, self._codec_names)
        if len(snapshot.groups) != len(self._movers):
            raise InvalidRequest(
                f"the K/V snapshot has {len(snapshot.groups)} groups of layers and this model {len(self._movers)}; "
                "give a snapshot of this model"
            )
        for mover, group in zip(self._movers, snapshot.groups, strict=True):
            mover.check(group)

    @torch.inference_mode()
    def import_(self, snapshot: KVSnapshot, sequence: SequenceState) -> None:
        """Write `snapshot` as the first tokens of `sequence`, which has its blocks and has written no K/V yet.

        Raises `InvalidRequest` before anything is written: as `check`, or if the sequence shows positions that the
        snapshot lacks, has fewer tokens written than it covers, or another rope offset.
        """
        self.check(snapshot)
        if sequence.written < snapshot.num_tokens or sequence.rope_offset != snapshot.rope_offset:
            raise InvalidRequest(
                f"the K/V snapshot covers {snapshot.num_tokens} tokens with rope offset {snapshot.rope_offset}, and "
                f"the sequence has {sequence.written} with {sequence.rope_offset}; append as many, and shift it alike"
            )
        for mover, group in zip(self._movers, snapshot.groups, strict=True):
            mover.check_held(group, sequence, snapshot.num_tokens)
        self._tables[sequence.handle.slot].restore(sequence)
        self._undo.set_written(sequence.handle.slot, snapshot.num_tokens)
        for mover, group in zip(self._movers, snapshot.groups, strict=True):
            mover.import_(group, sequence, snapshot.num_tokens)

    def decode_lookahead(self) -> DecodeLookahead:
        """A scope in which decode steps can be rewound. Takes memory for two rows of each ring when it is entered."""
        return self._undo.lookahead()

    def rewind(self, slots: Sequence[int], n: int = 1) -> None:
        """Take back the last `n` (1 or 2) decode steps of each slot: rings are as if these had never been planned.

        The bookkeeping rewinds beside it (`CachePool.rollback_append`). Raises `InvalidArgument`, with everything as it
        was, outside a `decode_lookahead` or where anything but single tokens came in since.
        """
        self._undo.rewind(slots, n)

    def forget_undo(self, slot: int) -> None:
        """Nothing of the slot can be rewound any more: for bookkeeping that trims it without `rewind`."""
        self._undo.forget(slot)

    def set_rotation(self, inverse_frequencies: InverseFrequencies) -> None:
        """Say how far keys are rotated, as context shifts need to know. Raises `InvalidArgument` for a wrong shape."""
        given = {layer: inverse_frequencies(layer) for layer in self._layers}
        for layer, frequencies in given.items():
            check_frequencies(frequencies, layer, self._groups[self._group_of[layer]].spec.k_dim)
        self._frequencies = given

    def check_shift(self) -> None:
        """Raises `InvalidRequest` if the context of no sequence can be shifted, because of the codec of its keys."""
        check_codec(next(iter(self._layers.values())).codecs[0])

    @torch.inference_mode()
    def shift(self, sequence: SequenceState) -> None:
        """Rotate now what the next step of a shifted sequence would, e.g. to export it. A second call changes nothing.

        Blocks that the shift has replaced must hold their copies. Raises as `plan`, or `InvalidArgument` for a sequence
        that has stored nothing; then nothing has changed.
        """
        slot, generation = sequence.handle
        table = self._tables[slot]
        if generation != table.generation:
            raise InvalidArgument(f"slot {slot} holds nothing of sequence {sequence.seq_id!r}; run a step of it first")
        live_start = tuple(group.live_start for group in sequence.tables)
        row = StepRow(
            slot, generation, sequence.storage, (), sequence.written, (), live_start, False, sequence.keep,
            sequence.rope_offset,
        )  # fmt: skip
        for _, delta in self._rises(StepBatch((row,))):
            table.restore(sequence)
            self._rotate_back(row, delta)

    def _rises(self, batch: StepBatch) -> list[tuple[StepRow, int]]:
        """Rows whose context was shifted since their last step, and by how much. Changes nothing."""
        tables = [(row, self._tables[row.slot]) for row in batch.rows]
        rises = [
            (row, row.rope_offset - table.rope_offset)
            for row, table in tables
            if row.generation == table.generation and row.rope_offset != table.rope_offset
        ]
        for row, _ in rises:
            if not self._frequencies:
                raise EngineFault(f"slot {row.slot} was shifted; call set_rotation before such a step")
            self.check_shift()
            check_row(row, self._groups, self._tables[row.slot])
        return rises

    def _rotate_back(self, row: StepRow, delta: int) -> None:
        """Rotate stored keys after the kept ones, all of private blocks, back by `delta` positions."""
        self._undo.forget(row.slot)
        for g, group in enumerate(self._groups):
            first = max(row.keep, row.live_start[g] - row.rope_offset)
            mapping = self._tables[row.slot].slot_mapping(g, first, row.rope_start)
            if len(mapping):
                keys = {layer: self._layers[layer].blocks.k for layer in group.layers}
                rotate_back(keys, mapping, delta, self._frequencies)

    def ring_state(self, slot: int) -> RingState:
        """A copy of the windows that a dense sequence keeps in rings, after its last step."""
        return read_rings(self._rings, slot, self._undo.written(slot))

    def restore_ring(self, slot: int, state: RingState) -> None:
        """Fill the slot's rings, for a sequence that goes on at position `state.written`.

        What it keeps in blocks is the caller's to fill. Raises `InvalidArgument` for another geometry, having written
        nothing.
        """
        write_rings(self._rings, slot, state)
        self._undo.set_written(slot, state.written)


def spare_blocks(device: torch.device) -> int:
    """Blocks of each group that are no sequence's: where padded steps store what nobody reads."""
    return 1 if device.type == "cuda" else 0


def _group_attention(
    spec: LayerSpec,
    store: LayerStore,
    block_size: int,
    device: torch.device,
    switches: RouteSwitches,
    staging: StepStaging,
) -> GroupAttention:
    refusal = CompiledAttention.refusal(spec, store, device)
    if refusal is None:
        return CompiledAttention(spec, block_size, switches.refusal(None))
    if device.type == "cuda":
        refusal = switches.refusal(FusedAttention.refusal(spec, store.codecs, block_size, device))
        if refusal is None:
            return FusedAttention(spec, store, block_size, device, staging, exact=switches.exact)
    reason = switches.refusal(refusal) or refusal
    return EagerAttention(spec, block_size, device, reason, side_by_side=device.type != "cpu")
