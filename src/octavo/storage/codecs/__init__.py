"""How K and V are encoded in storage. Every row that attention reads has been through its codec."""

from octavo.storage.codecs.choice import CODECS, check_heads, resolve_kv_dtype
from octavo.storage.codecs.codec import Codec, RowMemory, RowStore
from octavo.storage.codecs.known_losses import warn_of_losses

__all__ = ["CODECS", "Codec", "RowMemory", "RowStore", "check_heads", "resolve_kv_dtype", "warn_of_losses"]
