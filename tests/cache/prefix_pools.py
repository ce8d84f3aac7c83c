"""Small pools, and sequences that give what they computed to the prefix cache."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixDomain, PrefixHit, PrefixOptions, encode_tokens
from octavo.cache.sequence import SequenceHandle
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.step_batch import StorageKind

DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED
FULL = CacheGroup(LayerSpec("full", 4, 2, 64, 64, 0.125), (0,))
SLIDING = CacheGroup(LayerSpec("sliding", 4, 2, 64, 64, 0.125, window=32), (1,))
RECURRENT = CacheGroup(LayerSpec("recurrent", 4, 2, 64, 64, 0.125), (2,))
EVERYONE = PrefixDomain()


@dataclass(frozen=True)
class StateCopy:
    num_bytes: int


def make_pool(
    groups: Sequence[CacheGroup] = (FULL,), num_blocks: int = 20, options: PrefixOptions | None = None
) -> CachePool:
    blocks = [0 if group.spec.kind == "recurrent" else num_blocks for group in groups]
    return CachePool(groups, 16, blocks, 6, prefix=options)


def look_up(
    pool: CachePool, tokens: Sequence[int], domain: PrefixDomain = EVERYONE, storage: StorageKind = PAGED, keep: int = 0
) -> PrefixHit:
    return pool.prefix.match(domain, encode_tokens(tokens), storage, keep)


def write(
    pool: CachePool, name: str, tokens: Sequence[int], domain: PrefixDomain = EVERYONE, storage: StorageKind = PAGED
) -> SequenceHandle:
    """A sequence that has computed and donated `tokens`, from scratch."""
    hit = look_up(pool, tokens[:1], domain, storage)
    handle = pool.allocate(name, storage, len(tokens) + 40, prefix=hit)
    for start in range(0, len(tokens), pool.max_append_tokens or len(tokens)):
        pool.append(handle, min(len(tokens) - start, pool.max_append_tokens or len(tokens)))
    pool.donate(handle, lambda start, stop: tokens[start:stop], len(tokens))
    return handle


def cache(pool: CachePool, name: str, tokens: Sequence[int], domain: PrefixDomain = EVERYONE) -> None:
    pool.release(write(pool, name, tokens, domain))


def refused(pool: CachePool, kind: type[Exception], call: Callable[[], object], message: str = "") -> None:
    before = pickle.dumps(pool)
    with pytest.raises(kind, match=message):
        call()
    assert pickle.dumps(pool) == before
