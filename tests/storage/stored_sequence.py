"""One sequence in a cache with its pool, driven by hand: random K/V in, attention outputs and snapshots out."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.cache.cache_pool import CachePool
from octavo.cache.spec import LayerSpec, group_layers
from octavo.step_batch import StepBatch, StepRow, StorageKind
from octavo.storage.codecs import CODECS
from octavo.storage.kv_cache import KVCache
from octavo.storage.snapshot import KVSnapshot, ModelIdentity
from tests.schedules import poison

MODEL = ModelIdentity("a test", "0" * 64, "nothing")
MAX_TOKENS = 256
DIM = 32


def layer(window: int | None = None, heads: int = 2, dim: int = DIM) -> LayerSpec:
    return LayerSpec("full" if window is None else "sliding", 2 * heads, heads, dim, dim, 0.25, window)


class StoredSequence:
    """A sequence in the second slot of an otherwise unwritten cache; storage that nobody wrote is not finite."""

    def __init__(
        self,
        layout: list[LayerSpec],
        storage: StorageKind,
        codecs: tuple[str, str] = ("f32", "f32"),
        block_size: int = 16,
        keep: int = 0,
        max_append_tokens: int | None = None,
    ) -> None:
        groups = group_layers(layout)
        num_blocks = [3 * MAX_TOKENS // block_size] * len(groups)
        self.layout = layout
        self.pool = CachePool(groups, block_size, num_blocks, 2, max_append_tokens)
        self.cache = KVCache(
            groups,
            num_blocks=num_blocks,
            block_size=block_size,
            max_seqs=2,
            max_context=MAX_TOKENS,
            codecs=(CODECS[codecs[0]], CODECS[codecs[1]]),
            device=torch.device("cpu"),
        )
        poison(self.cache)
        self.storage = storage
        self.pool.append(self.pool.allocate("other", storage, MAX_TOKENS), 20)  # so that no block id is 0
        self.handle = self.pool.allocate("this", storage, MAX_TOKENS, keep)

    @property
    def state(self):
        return self.pool.sequence(self.handle)

    @property
    def written(self) -> int:
        return self.pool.written(self.handle)

    def count(self, n: int) -> tuple:
        """Take blocks for `n` more tokens, and let go of what windows leave behind."""
        fresh = self.pool.append(self.handle, n)
        self.trim()
        return fresh

    def trim(self) -> None:
        if self.storage is StorageKind.PAGED:
            for g, group in enumerate(self.pool.groups):
                if group.spec.window is not None:
                    self.pool.trim_front(self.handle, g, group.spec.first_visible(self.written))

    def write(self, data: list[list[Tensor]], n: int) -> list[Tensor]:
        """Store and attend the next `n` tokens of `data` (q, k, v per layer); the outputs per layer."""
        start = self.written
        live_start = self.pool.live_start(self.handle)
        fresh = self.pool.append(self.handle, n)
        slot, generation = self.handle
        place = (live_start, True, self.state.keep, self.state.rope_offset)
        row = StepRow(slot, generation, self.storage, (0,) * n, start, fresh, *place)
        self.cache.plan(StepBatch((row,)))
        outputs = [
            self.cache.attend(i, *(part[start : start + n].contiguous() for part in parts)).clone()
            for i, parts in enumerate(data)
        ]
        self.trim()
        return outputs

    def shift(self, num_tokens: int) -> None:
        """Drop the oldest tokens after the kept ones, and rotate the keys of those that follow."""
        self.pool.shift(self.handle, num_tokens)
        self.cache.set_rotation(lambda layer: 10_000.0 ** -(torch.arange(DIM // 2) / (DIM // 2)))
        self.cache.shift(self.state)

    def export(self) -> KVSnapshot:
        return self.cache.export(self.state, range(self.written), MODEL)


def draw(layout: list[LayerSpec], seed: int = 0, length: int = MAX_TOKENS) -> list[list[Tensor]]:
    """q, k, v [T, H, D] of every layer."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [
            torch.randn(length, heads, spec.k_dim, generator=generator)
            for heads in (spec.num_q_heads, spec.num_kv_heads, spec.num_kv_heads)
        ]
        for spec in layout
    ]
