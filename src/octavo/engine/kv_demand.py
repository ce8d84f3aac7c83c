"""What K/V takes in blocks and bytes, for one sequence and for many. Knows nothing of what is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.cache.spec import CacheGroup
from octavo.step_batch import StorageKind
from octavo.storage.codecs import Codec

CACHE_SHARE = 4  # windows in blocks get one more for every so many: room for cached prefixes beside live sequences


@dataclass(frozen=True, slots=True)
class KVDemand:
    """K/V of a model under one storage. `append` is the most tokens of one sequence in one step.

    `snapshots` of rings are kept for cached prefixes, unless they are off. `keep` tokens at the front outlive windows.
    """

    groups: tuple[CacheGroup, ...]
    codecs: tuple[Codec, Codec]
    storage: StorageKind
    block_size: int
    append: int
    snapshots: bool = False
    keep: int = 0

    def bytes_per_token(self, group: CacheGroup) -> int:
        """In all layers of the group."""
        spec, (k_codec, v_codec) = group.spec, self.codecs
        return group.bytes_per_token(
            spec.num_kv_heads * k_codec.bytes_per_row(spec.k_dim), spec.num_kv_heads * v_codec.bytes_per_row(spec.v_dim)
        )

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in every group that grows with the length of a sequence; 0 if there is none."""
        return self.block_size * sum(self.bytes_per_token(group) for group in self.groups if not windowed(group))

    def blocks(self, tokens: int) -> tuple[int, ...]:
        """Per group, the most blocks that a sequence growing to `tokens` tokens ever holds: what the pool asks for."""
        return tuple([self._blocks(group, tokens) for group in self.groups])

    def _blocks(self, group: CacheGroup, tokens: int) -> int:
        return group.max_blocks(self.storage, tokens, self.block_size, self.append, self.keep)

    def bytes_of(self, lengths: Sequence[int]) -> int:
        """K/V that sequences of these lengths hold at most, whole blocks and rings."""
        per_block = [self.block_size * self.bytes_per_token(group) for group in self.groups]
        return sum(
            blocks * size for tokens in lengths for blocks, size in zip(self.blocks(tokens), per_block, strict=True)
        ) + sum(self.ring_rows(group, len(lengths)) * self.bytes_per_token(group) for group in self.groups)

    def ring_rows(self, group: CacheGroup, num_seqs: int) -> int:
        """Rows of the rings of `num_seqs` sequences; 0 where the group lies in blocks."""
        window = group.spec.window
        return 0 if window is None or group.takes_blocks(self.storage) else num_seqs * window

    def snapshot_rows(self, group: CacheGroup, num_seqs: int) -> int:
        """Rows of rings that may be kept for cached prefixes: of a quarter as many sequences as run, one at least."""
        return self.ring_rows(group, -(-num_seqs // CACHE_SHARE)) if self.snapshots else 0

    def windowed_blocks(self, group: CacheGroup, num_seqs: int, max_context: int) -> int:
        """Blocks of a windowed group: all that `num_seqs` sequences can hold, and a quarter more for cached prefixes.

        The pool wants one block of each group, also where rings make it idle.
        """
        live = num_seqs * self._blocks(group, max_context)
        return max(1, live + -(-live // CACHE_SHARE))

    def windowed_bytes(self, num_seqs: int, max_context: int) -> int:
        """Blocks, rings and snapshots of all windowed groups."""
        return sum(
            self.bytes_per_token(g)
            * (
                self.windowed_blocks(g, num_seqs, max_context) * self.block_size
                + self.ring_rows(g, num_seqs)
                + self.snapshot_rows(g, num_seqs)
            )
            for g in self.groups
            if windowed(g)
        )


def windowed(group: CacheGroup) -> bool:
    """True if what a sequence holds of the group is bounded by its window, and set aside for every sequence."""
    return group.bounded and group.spec.window is not None
