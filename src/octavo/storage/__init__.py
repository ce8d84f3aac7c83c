"""K/V storage behind one seam: `KVCache.plan` once per step, `KVCache.attend` once per layer."""

from octavo.storage.codecs import resolve_kv_dtype
from octavo.storage.kv_cache import KVCache
from octavo.storage.route import Route

__all__ = ["KVCache", "Route", "resolve_kv_dtype"]
