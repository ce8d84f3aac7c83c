"""What a cache's K and V take, seen from outside."""

from __future__ import annotations

from octavo.storage.kv_cache import KVCache


def held_bytes(cache: KVCache) -> int:
    """Of the planes of all layers; layers may share one piece of memory, which counts once."""
    rows = [rows for layer in cache._layers.values() for rows in (layer.blocks, layer.ring) if rows]
    planes = [plane for each in rows for store in (each.k, each.v) for plane in store.planes().values()]
    memory = [plane.untyped_storage() for plane in planes]
    return sum({each.data_ptr(): each.nbytes() for each in memory}.values())
