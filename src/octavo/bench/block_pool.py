"""What the block bookkeeping costs per call, in microseconds. Prints figures, judges none."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.cache.block_pool import BlockPool
from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixDomain, encode_tokens
from octavo.cache.sequence import SequenceHandle
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.step_batch import StorageKind

BLOCK_SIZE = 16
POOL_SIZES = (1_000, 100_000)
_FULL = CacheGroup(LayerSpec("full", 8, 2, 64, 64, 0.125), (0,))


def measure_block_pool(num_blocks: int, repeats: int = 20_000) -> dict[str, float]:
    """Processor time per call, in microseconds, on a half-used pool of `num_blocks` blocks; best of five rounds."""
    half = num_blocks // 2
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    used = pool.allocate(num_blocks)
    pool.release(used[::2])  # fragmented: every other block is free
    batch = min(half, 500)
    cache = CachePool([_FULL], BLOCK_SIZE, [num_blocks], batch + 1)
    handle = cache.allocate("bench", StorageKind.PAGED, num_blocks * BLOCK_SIZE)
    short: list[SequenceHandle] = []
    repeats -= repeats % batch

    def allocate_and_release() -> None:
        for _ in range(repeats // batch):
            taken = [pool.allocate(1) for _ in range(batch)]
            for block_ids in taken:
                pool.release(block_ids)

    def append_decode() -> None:
        for _ in range(min(repeats, half * BLOCK_SIZE)):
            cache.append(handle, 1)

    def append_block() -> None:
        for _ in range(min(repeats, half)):
            cache.append(handle, BLOCK_SIZE)

    def drop_tail() -> None:
        cache.trim_tail(handle, cache.written(handle))

    def begin_short() -> None:
        drop_tail()
        for i in range(batch):
            short.append(cache.allocate(str(i), StorageKind.PAGED, BLOCK_SIZE))
            cache.append(short[-1], 1)

    def release_short() -> None:
        while short:
            cache.release(short.pop())

    solid = BlockPool(num_blocks, BLOCK_SIZE)

    def allocate_run() -> None:
        for _ in range(100):
            solid.release(solid.allocate_run(half))

    return {
        "BlockPool.allocate(1) + release": _best(allocate_and_release) / repeats,
        "CachePool.append(1)": _best(append_decode, before=drop_tail) / min(repeats, half * BLOCK_SIZE),
        "CachePool.append(one block)": _best(append_block, before=drop_tail) / min(repeats, half),
        "CachePool.release of one block": _best(release_short, before=begin_short) / batch,
        "BlockPool.longest_run": _best(lambda: [pool.longest_run() for _ in range(20)]) / 20,
        f"BlockPool.allocate_run({half}) + release": _best(allocate_run) / 100,
    }


def measure_prefix_cache(num_tokens: int = 100_000, num_others: int = 200) -> dict[str, float]:
    """Processor time per call, in microseconds, with one prompt of `num_tokens` in the cache and `num_others` that
    leave it at different blocks; best of five rounds.
    """
    prompt = tuple(range(num_tokens))
    num_blocks = 2 * num_tokens // BLOCK_SIZE + 4 * num_others
    pool = CachePool([_FULL], BLOCK_SIZE, [num_blocks], 2)
    for i in range(num_others):
        cut = num_tokens * (i + 1) // (num_others + 1)
        _give(pool, (*prompt[:cut], *[-1 - i] * (2 * BLOCK_SIZE)))
    _give(pool, prompt)
    domain, encoded = PrefixDomain(), encode_tokens(prompt)
    prefix = pool.prefix
    assert prefix.match(domain, encoded).num_tokens >= num_tokens - BLOCK_SIZE

    def begin() -> None:
        hit = prefix.match(domain, encode_tokens(prompt))
        pool.release(pool.allocate("bench", StorageKind.PAGED, num_tokens + 1, prefix=hit))

    return {
        "encode_tokens": _best(lambda: encode_tokens(prompt)),
        "PrefixCache.match": _best(lambda: prefix.match(domain, encoded)),
        "encode_tokens + match": _best(lambda: prefix.match(domain, encode_tokens(prompt))),
        "encode_tokens + match + allocate + release": _best(begin),
    }


def _give(pool: CachePool, tokens: tuple[int, ...]) -> None:
    hit = pool.prefix.match(PrefixDomain(), encode_tokens(tokens))
    handle = pool.allocate("given", StorageKind.PAGED, len(tokens), prefix=hit)
    pool.append(handle, len(tokens) - hit.num_tokens)
    pool.donate(handle, lambda start, stop: tokens[start:stop], len(tokens))
    pool.release(handle)


def main() -> None:
    """Print one table: a line per operation and pool size, then one per operation of the prefix cache."""
    for num_blocks in POOL_SIZES:
        for name, microseconds in measure_block_pool(num_blocks).items():
            print(f"{num_blocks:>8,} blocks  {name:<44} {microseconds:10.3f} µs")
    for name, microseconds in measure_prefix_cache().items():
        print(f" 100,000 tokens  {name:<44} {microseconds:10.3f} µs")


def _best(call: Callable[[], object], rounds: int = 5, before: Callable[[], object] = lambda: None) -> float:
    """Microseconds of processor time of the fastest of `rounds` calls; one thread, so others do not disturb it.

    `before` runs ahead of each call, untimed.
    """
    times = []
    for _ in range(rounds):
        before()
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times) * 1e6


if __name__ == "__main__":
    main()
