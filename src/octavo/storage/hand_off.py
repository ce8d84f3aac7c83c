"""Moves one sequence's encoded rows between storage and a snapshot, a group at a time. Decodes nothing.

Which stored row holds a position is the sequence's own tables' business, so a snapshot fits any storage and block size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.cache.sequence import SequenceState
from octavo.cache.spec import CacheGroup
from octavo.errors import InvalidRequest
from octavo.step_batch import StorageKind
from octavo.storage.layer_store import KVRows, LayerStore
from octavo.storage.snapshot import GroupGeometry, GroupRows, KVSnapshot, LayerRows


@dataclass(frozen=True, slots=True)
class _Held:
    """The positions of a sequence's first `stop` tokens that its next token, or a later one, may read.

    [0, keep)  gone …  [live_start, stop)
    """

    keep: int
    live_start: int
    stop: int

    @classmethod
    def of(cls, group: CacheGroup, index: int, sequence: SequenceState, stop: int) -> _Held:
        needed = group.spec.first_visible(stop)
        if _in_ring(group, sequence):  # which holds nothing but the window
            return cls(0, needed, stop)
        live_start = min(stop, max(needed, sequence.keep, sequence.tables[index].live_start))
        return cls(min(sequence.keep, stop, live_start), live_start, stop)

    def positions(self) -> NDArray[np.int64]:
        return np.concatenate([np.arange(self.keep), np.arange(self.live_start, self.stop)])


class GroupMover:
    """One group of a cache: `stores` are its layers', in order."""

    def __init__(self, group: CacheGroup, index: int, block_size: int, stores: Sequence[LayerStore]) -> None:
        self._group = group
        self._index = index
        self._block_size = block_size
        self._stores = stores

    def export(self, sequence: SequenceState) -> GroupRows:
        """Copies of the rows that `sequence` holds, in position order."""
        held = _Held.of(self._group, self._index, sequence, sequence.written)
        rows = self._stored_rows(sequence, held.positions())
        layers = tuple(LayerRows(_taken(kv.k.planes(), rows), _taken(kv.v.planes(), rows)) for kv in self._kv(sequence))
        return GroupRows(GroupGeometry.of(self._group), held.keep, held.live_start, layers)

    def check(self, given: GroupRows) -> None:
        """Raises `InvalidRequest` unless `given` has this group's geometry and its codecs' planes."""
        own = GroupGeometry.of(self._group)
        if given.geometry != own:
            raise InvalidRequest(
                f"group {self._index} of the K/V snapshot is {given.geometry}; this model's is {own}: give a snapshot "
                "of this model"
            )
        for store, layer in zip(self._stores, given.layers, strict=True):
            for planes, stored in ((layer.k, store.blocks.k.planes()), (layer.v, store.blocks.v.planes())):
                if _shapes(planes) != _shapes(stored):
                    raise InvalidRequest(
                        f"group {self._index} of the K/V snapshot has rows {_shapes(planes)}; this engine's are "
                        f"{_shapes(stored)}: make the snapshot again"
                    )

    def check_held(self, given: GroupRows, sequence: SequenceState, num_tokens: int) -> None:
        """Raises `InvalidRequest` if `sequence` would show positions that `given` lacks."""
        held = _Held.of(self._group, self._index, sequence, num_tokens)
        if given.live_start == given.keep:  # nothing is missing in between
            return
        if held.keep > given.keep:
            raise InvalidRequest(
                f"group {self._index} of the K/V snapshot keeps {given.keep} tokens at its front and the sequence "
                f"shows {held.keep}; export it from paged storage with as many"
            )
        if held.live_start < given.live_start:
            raise InvalidRequest(
                f"group {self._index} of the K/V snapshot goes on at position {given.live_start} and the sequence at "
                f"{held.live_start}; import it into a sequence trimmed alike"
            )

    def import_(self, given: GroupRows, sequence: SequenceState, num_tokens: int) -> None:
        """Write the rows that `sequence` shows of its first `num_tokens` tokens. Both checks have passed."""
        held = _Held.of(self._group, self._index, sequence, num_tokens)
        positions = held.positions()
        source = np.where(positions < given.keep, positions, positions - given.live_start + given.keep)
        everything = len(source) == given.keep + num_tokens - given.live_start
        chosen = None if everything else torch.from_numpy(source)
        rows = self._stored_rows(sequence, positions)
        # A gather reads whole blocks and hides what is not visible; memory that nobody wrote may not be finite.
        hidden = self._stored_rows(sequence, self._hidden(sequence, held))
        for layer, kv in zip(given.layers, self._kv(sequence), strict=True):
            for planes, stored in ((layer.k, kv.k.planes()), (layer.v, kv.v.planes())):
                for name, plane in planes.items():
                    values = plane if chosen is None else plane.index_select(0, chosen.to(plane.device))
                    target = stored[name]
                    target.index_copy_(0, rows.to(target.device), values.to(target.device))
                    target.index_fill_(0, hidden.to(target.device), 0)

    def _kv(self, sequence: SequenceState) -> Iterable[KVRows]:
        if not _in_ring(self._group, sequence):
            return [store.blocks for store in self._stores]
        rings = [store.ring for store in self._stores if store.ring is not None]
        assert len(rings) == len(self._stores), "a dense sequence with windows in a cache without rings"
        return rings

    def _stored_rows(self, sequence: SequenceState, positions: NDArray[np.int64]) -> Tensor:
        if _in_ring(self._group, sequence):
            window = self._group.spec.window
            assert window is not None
            return torch.from_numpy(sequence.handle.slot * window + positions % window)
        ids = sequence.tables[self._index].block_ids
        table = np.array([-1 if block_id is None else block_id for block_id in ids], dtype=np.int64)
        blocks = table[positions // self._block_size]
        assert (blocks >= 0).all(), "a visible position lies in a block that was freed"
        stride = self._stores[0].stride
        return torch.from_numpy(blocks * (stride * self._block_size) + positions % self._block_size)

    def _hidden(self, sequence: SequenceState, held: _Held) -> NDArray[np.int64]:
        """Positions before the end that lie in the sequence's blocks and that it does not show."""
        if _in_ring(self._group, sequence):
            return np.empty(0, dtype=np.int64)
        size = self._block_size
        gap = np.arange(held.keep, held.live_start)
        ids = sequence.tables[self._index].block_ids
        in_block = np.array([block_id is not None for block_id in ids], dtype=bool)
        hidden: NDArray[np.int64] = gap[in_block[gap // size]]
        return hidden


def check_codecs(snapshot: KVSnapshot, names: tuple[str, str]) -> None:
    """Raises `InvalidRequest` unless the cache's (K, V) codecs are the snapshot's."""
    if snapshot.codecs != names:
        k, v = snapshot.codecs
        raise InvalidRequest(
            f"the K/V snapshot is k={k},v={v} and this engine stores k={names[0]},v={names[1]}; choose kv dtype "
            f"k={k},v={v}, or make the snapshot again"
        )


def _in_ring(group: CacheGroup, sequence: SequenceState) -> bool:
    return sequence.storage is StorageKind.DENSE and group.spec.window is not None


def _taken(planes: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: plane.index_select(0, rows.to(plane.device)) for name, plane in planes.items()}


def _shapes(planes: Mapping[str, Tensor]) -> str:
    """Planes by name with the dtype and shape of one row."""
    rows = {name: (str(plane.dtype).removeprefix("torch."), *plane.shape[1:]) for name, plane in planes.items()}
    return ", ".join(f"{name} {row[0]} {list(row[1:])}" for name, row in sorted(rows.items()))
