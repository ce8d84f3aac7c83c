"""How K and V are encoded in storage. Every row that attention reads has been through its codec."""

from octavo.storage.codecs import CODECS, Codec, RowStore, resolve_kv_dtype

__all__ = ["CODECS", "Codec", "RowStore", "resolve_kv_dtype"]
