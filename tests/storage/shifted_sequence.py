"""A paged sequence that is decoded past its context: its bookkeeping by hand, its definition in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.cache.sequence import GroupTable, SequenceHandle, SequenceState
from octavo.cache.spec import LayerSpec, group_layers
from octavo.kernels import reference
from octavo.step_batch import FreshBlocks, StepBatch, StepRow, StorageKind
from octavo.storage.codecs import CODECS
from octavo.storage.kv_cache import KVCache
from tests.schedules import poison

SLOT, GENERATION = 1, 3


class Bookkeeping:
    """Tables and offsets of one sequence; blocks in scattered order; those that are given up are filled with NaN."""

    def __init__(
        self,
        layout: Sequence[LayerSpec],
        keep: int,
        *,
        max_context: int,
        block_size: int = 16,
        codecs: tuple[str, str] = ("f32", "f32"),
    ) -> None:
        self.groups = group_layers(layout)
        self.block_size = block_size
        num_blocks = -(-max_context // block_size) + 3
        self.cache = KVCache(
            self.groups,
            num_blocks=[num_blocks] * len(self.groups),
            block_size=block_size,
            max_seqs=2,
            max_context=max_context,
            codecs=(CODECS[codecs[0]], CODECS[codecs[1]]),
            device=torch.device("cpu"),
        )
        poison(self.cache)
        order = list(range(num_blocks))
        random.Random(0).shuffle(order)
        self._free = [list(order) for _ in self.groups]
        kept = -(-keep // block_size)
        tables = tuple(GroupTable([], keep, kept, kept) for _ in self.groups)
        handle = SequenceHandle(SLOT, GENERATION)
        self.state = SequenceState("shifted", handle, StorageKind.PAGED, 1 << 20, keep, tables)

    def row(self, token_ids: Sequence[int]) -> StepRow:
        """The step of the sequence's next tokens."""
        state, start = self.state, self.state.written
        state.written += len(token_ids)
        fresh = []
        for g, table in enumerate(state.tables):
            first = len(table.block_ids)
            needed = -(-state.written // self.block_size)
            while len(table.block_ids) < needed:
                table.block_ids.append(self._free[g].pop())
            if needed > first:
                fresh.append(FreshBlocks(g, first, table.ids(first, needed)))
        live_start = tuple(table.live_start for table in state.tables)
        return StepRow(
            SLOT, GENERATION, state.storage, tuple(token_ids), start, tuple(fresh), live_start, True, state.keep,
            state.rope_offset,
        )  # fmt: skip

    def batch(self, token_ids: Sequence[int]) -> StepBatch:
        return StepBatch((self.row(token_ids),))

    def drop(self, num_tokens: int) -> None:
        """Give up the `num_tokens` tokens after the kept ones, and whole blocks of them."""
        state = self.state
        state.rope_offset += num_tokens
        for g, (table, group) in enumerate(zip(state.tables, self.groups, strict=True)):
            table.live_start = max(state.keep + state.rope_offset, group.spec.first_visible(state.written))
            stop = max(table.hole_stop, table.live_start // self.block_size)
            for block in table.ids(table.hole_stop, stop):
                self._free[g].insert(0, block)
                self._poison(g, block)
            table.block_ids[table.hole_stop : stop] = [None] * (stop - table.hole_stop)
            table.hole_stop = stop

    def visible(self) -> list[int]:
        """Indices of the tokens that the sequence shows, in order."""
        state = self.state
        return [*range(min(state.keep, state.written)), *range(state.keep + state.rope_offset, state.written)]

    def _poison(self, group: int, block: int) -> None:
        rows = slice(block * self.block_size, (block + 1) * self.block_size)
        for layer in self.groups[group].layers:
            blocks = self.cache._layers[layer].blocks
            for plane in (*blocks.k.planes().values(), *blocks.v.planes().values()):
                plane[rows].view(torch.uint8).fill_(0xFF)


class Decoder:
    """Random q, k and v of `length` tokens per layer, rotated as a model would, and what attention over them is."""

    def __init__(self, book: Bookkeeping, layout: Sequence[LayerSpec], inv_freq: Sequence[Tensor], length: int) -> None:
        self.book = book
        self.cache = book.cache
        self._layout = layout
        self._inv_freq = inv_freq
        self.cache.set_rotation(lambda layer: inv_freq[layer])
        generator = torch.Generator().manual_seed(0)
        self._drawn = [
            [
                torch.randn(length, heads, dim, generator=generator)
                for heads, dim in ((s.num_q_heads, s.k_dim), (s.num_kv_heads, s.k_dim), (s.num_kv_heads, s.v_dim))
            ]
            for s in layout
        ]

    def step(self, num_tokens: int) -> list[Tensor]:
        """Attention outputs [T, Hq, D] of the next tokens, per layer."""
        row = self.book.row([0] * num_tokens)
        self.cache.plan(StepBatch((row,)))
        position = torch.arange(row.rope_start, row.rope_stop)
        outputs = []
        for layer in range(len(self._layout)):
            q, k, v = (x[row.start : row.stop] for x in self._drawn[layer])
            q, k = self._rotate(q, position, layer).float(), self._rotate(k, position, layer).float()
            outputs.append(self.cache.attend(layer, q, k, v).clone())
        return outputs

    def define(self) -> list[Tensor]:
        """What the last token's step gives, [Hq, D] float64 per layer: what is shown counts from 0 without a gap."""
        shown = self.book.visible()
        position = torch.arange(len(shown))
        outputs = []
        for layer, spec in enumerate(self._layout):
            q, k, v = self._drawn[layer]
            q = self._rotate(q[shown[-1:]], position[-1:], layer)
            k = self._rotate(k[shown], position, layer)
            out = reference.attention(
                q, k, v[shown], q_start=len(shown) - 1, scale=spec.scale, window=spec.window, softcap=spec.softcap
            )
            outputs.append(out[0])
        return outputs

    def _rotate(self, x: Tensor, position: Tensor, layer: int) -> Tensor:
        inv_freq = self._inv_freq[layer].double()
        width = 2 * len(inv_freq)
        return torch.cat((reference.rotate(x[..., :width].double(), position, inv_freq), x[..., width:].double()), -1)
