"""One slot's rings outside the cache: encoded rows of the window in position order. In memory only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.cache.refusals import InvalidArgument
from octavo.storage.layer_store import KVRows


@dataclass(frozen=True, slots=True, eq=False)
class RingState:
    """What the rings of a sequence of `written` tokens hold: all that the tokens from there on read of windows.

    `layers[layer]` are the planes of K and of V by name, each [min(window, written), Hkv, width]: the last positions
    before `written`, in order. Nothing in it changes, and it is free of the cache it came from.
    """

    written: int
    layers: Mapping[int, tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]

    @property
    def num_bytes(self) -> int:
        return sum(plane.nbytes for kv in self.layers.values() for planes in kv for plane in planes.values())


def ring_rows(slot: int, window: int, written: int) -> Tensor:
    """Rows [min(window, written)] int64 of a ring group that hold the slot's last positions before `written`."""
    return slot * window + torch.arange(max(0, written - window), written) % window


def read_rings(rings: Mapping[int, tuple[int, KVRows]], slot: int, written: int) -> RingState:
    """Copies of a slot's window in every layer; `rings` are windows and rows by layer."""
    layers = {}
    for layer, (window, kv) in rings.items():
        rows = ring_rows(slot, window, written)
        layers[layer] = (_taken(kv.k.planes(), rows), _taken(kv.v.planes(), rows))
    return RingState(written, layers)


def write_rings(rings: Mapping[int, tuple[int, KVRows]], slot: int, state: RingState) -> None:
    """Make the slot's window that of `state`. Raises `InvalidArgument` for another geometry, having written nothing."""
    if state.layers.keys() != rings.keys():
        raise InvalidArgument(f"the ring state has layers {list(state.layers)}; this cache has {list(rings)}")
    work: list[tuple[Tensor, Tensor, Tensor]] = []
    for layer, (window, kv) in rings.items():
        rows = ring_rows(slot, window, state.written)
        for name, given, store in zip(("K", "V"), state.layers[layer], (kv.k, kv.v), strict=True):
            targets = store.planes()
            if _shapes(given) != _shapes(targets) or any(len(plane) != len(rows) for plane in given.values()):
                raise InvalidArgument(
                    f"the ring state has {name} rows {_shapes(given)} of {[len(p) for p in given.values()]} tokens in "
                    f"layer {layer}; this cache has {_shapes(targets)}, and a window shows {len(rows)} tokens"
                )
            work.extend((targets[plane], rows, values) for plane, values in given.items())
    for target, rows, values in work:
        target.index_copy_(0, rows.to(target.device), values.to(target.device))


def _taken(planes: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: plane.index_select(0, rows.to(plane.device)) for name, plane in planes.items()}


def _shapes(planes: Mapping[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Planes by name with the dtype and shape of one row."""
    return {name: (str(plane.dtype), tuple(plane.shape[1:])) for name, plane in planes.items()}
