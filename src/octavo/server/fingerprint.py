"""Names what answers: the same name, seed and request give the same answer, as far as the engine's routes allow."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import octavo
from octavo.engine.serving import ModelInfo


@lru_cache(maxsize=8)
def system_fingerprint(info: ModelInfo) -> str:
    """Of the version, the model and how it was loaded."""
    parts = (octavo.__version__, info.name, info.family, info.storage, info.dtype, info.kv_dtype, info.weights)
    return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
