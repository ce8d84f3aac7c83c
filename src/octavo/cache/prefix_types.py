"""What callers and the prefix cache exchange: domains, encoded tokens, hits, snapshots, options and counters."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from operator import attrgetter
from typing import NewType, Protocol

from octavo.cache.refusals import InvalidArgument
from octavo.step_batch import StorageKind

TokenRun = NewType("TokenRun", bytes)
"""Token ids as `encode_tokens` lays them out: compared and cut as bytes, at memory speed."""

TOKEN_BYTES = array("i").itemsize
Digest = Callable[[bytes], bytes]


def encode_tokens(tokens: Sequence[int]) -> TokenRun:
    """Raises `InvalidArgument` for an id that is no 32-bit integer."""
    try:
        return TokenRun(array("i", tokens).tobytes())
    except (OverflowError, TypeError) as error:
        raise InvalidArgument(f"a token id is no 32-bit integer ({error})") from error


def blake2b_128(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class PrefixDomain:
    """All that changes K/V beside the tokens: sequences share blocks only where every field is equal."""

    model: str = ""
    adapter: str = ""
    template: str = ""
    salt: str = ""
    media: str = ""
    rope: str = ""

    def encoded(self) -> bytes:
        """Every field with its length before it, so that no two domains are written alike."""
        texts = [text.encode() for text in _texts_of(self)]
        return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


_texts_of = attrgetter(*(field.name for field in fields(PrefixDomain)))  # `astuple` copies, and takes ten times as long


class Snapshot(Protocol):
    """What a sequence keeps outside of blocks (rings, recurrent state) at one position. Opaque here."""

    @property
    def num_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PrefixOptions:
    """`limit_bytes` bounds what the cache holds (None: only the pools do), `snapshot_limit_bytes` the part of it that
    does not lie in the pools (None: no bound of its own). `bytes_per_block` is per group, 1 each unless given. `digest`
    finds edges; tests replace it.
    """

    limit_bytes: int | None = None
    snapshot_limit_bytes: int | None = None
    bytes_per_block: tuple[int, ...] | None = None
    digest: Digest = blake2b_128


@dataclass(slots=True)
class PrefixCounters:
    """Since construction: sequences begun with and without a cached prefix, tokens these did not have to compute,
    blocks that left the cache, and blocks that it would not take.
    """

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    rejects: int = 0


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What the cache has of `tokens`: its first `num_tokens`, whole blocks and never all (0: nothing).

    `blocks` are per group, by absolute block, None where the sequence will not look. They are held for nobody yet:
    if they were evicted meanwhile, `CachePool.allocate` refuses the hit. `snapshot` is for what storage keeps outside
    of blocks, if it keeps any.
    """

    domain: PrefixDomain
    tokens: TokenRun
    storage: StorageKind
    keep: int
    num_tokens: int
    blocks: tuple[tuple[int | None, ...], ...]
    snapshot: Snapshot | None

    def without_tokens(self) -> PrefixHit:
        """The hit of a sequence that gives to the same domain and takes nothing."""
        return replace(self, num_tokens=0, blocks=((),) * len(self.blocks), snapshot=None)
