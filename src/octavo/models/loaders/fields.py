"""Typed look-ups in untrusted mappings (GGUF metadata, config.json), and the checks every config must pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import LoadError
from octavo.models.config import ModelConfig

MAX_LAYERS = 4096


class Fields:
    """A mapping read by key with the expected type; a wrong or missing value is a `LoadError` that names the key.

    A value of None counts as missing: config.json writes `null` for "not set".
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def get(self, key: str) -> Any:
        return self.values.get(self.prefix + key)

    def fail(self, key: str, wanted: str) -> LoadError:
        value = self.get(key)
        if value is None:
            return LoadError(f"{self.path}: {self.prefix + key!r} is missing; it must be {wanted}")
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return LoadError(f"{self.path}: {self.prefix + key!r} is {shown}; it must be {wanted}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(key, "a whole number of at least 1")
        return value

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if key in self else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.fail(key, "a finite number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.fail(key, "a string")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids; empty if missing."""
        value = self.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
            raise self.fail(key, "a token id or a list of token ids")
        return tuple(ids)


def unique(ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """The ids that exist, in order, without repeats. (Files name end ids that their vocabulary lacks.)"""
    return tuple(dict.fromkeys(token for token in ids if token < vocab_size))


def checked(path: Path, config: ModelConfig) -> ModelConfig:
    """The config itself; raises `LoadError` where its numbers contradict each other."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        raise LoadError(f"{path}: {heads} attention heads are not a multiple of {kv_heads} key-value heads")
    if config.head_dim % 2:
        raise LoadError(f"{path}: the head size is {config.head_dim}; rotary embeddings need an even one")
    if len(config.layer_types) != config.num_hidden_layers:
        raise LoadError(f"{path}: {len(config.layer_types)} layer types for {config.num_hidden_layers} layers")
    if "sliding_attention" in config.layer_types and config.sliding_window is None:
        raise LoadError(f"{path}: has sliding attention layers, but no 'sliding_window'")
    return config


def layer_count(fields: Fields, key: str, num_tensors: int) -> int:
    """The number of layers, refused before anything is sized by it if the file cannot hold that many."""
    layers = fields.integer(key)
    if layers > min(num_tensors, MAX_LAYERS):
        raise LoadError(
            f"{fields.path}: {fields.prefix + key!r} is {layers}, but the file has {num_tensors} tensors "
            f"(and {MAX_LAYERS} layers are the limit); the file is corrupt or incomplete"
        )
    return layers
