"""Decodes one sequence's keys and values into scratch, in position order, from wherever they are stored."""

from __future__ import annotations

from torch import Tensor

from octavo.storage.layer_store import KVRows, LayerStore
from octavo.storage.plan import RingPlan, RowPlan
from octavo.storage.route import Route


def stage(row: RowPlan, store: LayerStore, block_size: int, k: Tensor, v: Tensor) -> None:
    """Fill the row's views. k and v [T, Hkv, D] are the step's own, in blocks already; a ring is written here."""
    keys, values = row.views.key_target, row.views.value_target
    if row.route is Route.DENSE:
        start, stop = row.base + row.read_start, row.base + row.span.hi
        store.blocks.k.read(start, stop, keys)
        store.blocks.v.read(start, stop, values)
    elif row.block_ids is not None:
        store.blocks.k.read_blocks(row.block_ids, block_size, keys)
        store.blocks.v.read_blocks(row.block_ids, block_size, values)
    elif row.pieces is not None:
        for piece in row.pieces:
            part = slice(piece.at, piece.at + piece.stop - piece.start)
            store.blocks.k.read(piece.start, piece.stop, keys[:, part])
            store.blocks.v.read(piece.start, piece.stop, values[:, part])
    else:
        assert store.ring is not None
        assert row.ring is not None
        _stage_ring(row, row.ring, store, store.ring, k[row.q0 : row.q1], v[row.q0 : row.q1])
        store.ring.write(row.ring.rows, k[row.ring.first_token : row.q1], v[row.ring.first_token : row.q1])


def _stage_ring(row: RowPlan, ring: RingPlan, store: LayerStore, rows: KVRows, k: Tensor, v: Tensor) -> None:
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
        rows.k.read(start, start + length, keys[:, at : at + length])
        rows.v.read(start, start + length, values[:, at : at + length])
        position += length
    k_codec, v_codec = store.codecs
    fresh = row.start - row.read_start
    keys[:, fresh:].copy_(k_codec.round_trip(k).transpose(0, 1))
    values[:, fresh:].copy_(v_codec.round_trip(v).transpose(0, 1))
