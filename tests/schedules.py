"""Drives a K/V cache by hand: several sequences, scattered blocks, any order of steps; unused storage is poisoned."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from octavo.cache.spec import LayerSpec, group_layers
from octavo.step_batch import FreshBlocks, StepBatch, StepRow, StorageKind
from octavo.storage.codecs import CODECS
from octavo.storage.kv_cache import KVCache
from octavo.storage.route import RouteSwitches

CPU = torch.device("cpu")


class HandScheduler:
    """Gives each sequence blocks in scattered order (paged) or one run (dense), and lays out steps."""

    def __init__(
        self,
        layout: Sequence[LayerSpec],
        storage: StorageKind,
        *,
        max_seqs: int,
        max_context: int,
        block_size: int = 16,
        codecs: tuple[str, str] = ("f32", "f32"),
        seed: int = 0,
        device: torch.device = CPU,
        switches: RouteSwitches | None = None,
    ) -> None:
        self.storage = storage
        self.groups = group_layers(layout)
        self._block_size = block_size
        self._blocks_each = -(-max_context // block_size)
        num_blocks = max_seqs * self._blocks_each
        self.cache = KVCache(
            self.groups,
            num_blocks=[num_blocks] * len(self.groups),
            block_size=block_size,
            max_seqs=max_seqs,
            max_context=max_context,
            codecs=(CODECS[codecs[0]], CODECS[codecs[1]]),
            device=device,
            switches=switches,
        )
        poison(self.cache)
        self._order = list(range(num_blocks))
        if storage is StorageKind.PAGED:
            random.Random(seed).shuffle(self._order)
        self.written = [0] * max_seqs
        self._held = [0] * max_seqs

    def row(self, slot: int, token_ids: Sequence[int], sample: bool = True) -> StepRow:
        start, stop = self.written[slot], self.written[slot] + len(token_ids)
        needed = self._blocks_each if self.storage is StorageKind.DENSE else -(-stop // self._block_size)
        first = self._held[slot]
        base = slot * self._blocks_each
        ids = tuple(self._order[base + first : base + needed])
        fresh = tuple(FreshBlocks(g, first, ids) for g in range(len(self.groups))) if ids else ()
        self.written[slot], self._held[slot] = stop, max(first, needed)
        return StepRow(slot, 1, self.storage, tuple(token_ids), start, fresh, (0,) * len(self.groups), sample)

    def batch(self, shares: Sequence[tuple[int, Sequence[int]]]) -> StepBatch:
        """A step of (slot, token ids) shares."""
        return StepBatch(tuple(self.row(slot, ids) for slot, ids in shares))


def poison(cache: KVCache) -> None:
    """Fill all storage with NaN, codes with ones in every bit: whatever is read before it was written shows."""
    for layer in cache._layers.values():
        for rows in (layer.blocks, layer.ring):
            if rows is not None:
                for plane in (*rows.k.planes().values(), *rows.v.planes().values()):
                    plane.fill_(float("nan")) if plane.dtype.is_floating_point else plane.view(torch.uint8).fill_(0xFF)


def random_shares(lengths: Sequence[int], seed: int, longest: int = 60) -> list[list[tuple[int, int]]]:
    """Steps of (slot, count) shares that bring every slot to its length, in random chunks and company."""
    rng = random.Random(seed)
    left = list(lengths)
    steps = []
    while any(left):
        slots = [slot for slot, rest in enumerate(left) if rest and rng.random() < 0.7]
        shares = []
        for slot in slots:
            count = 1 if rng.random() < 0.4 else rng.randint(1, min(longest, left[slot]))
            left[slot] -= count
            shares.append((slot, count))
        if shares:
            steps.append(shares)
    return steps
