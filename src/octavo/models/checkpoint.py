"""A model's files, opened and checked but not read: what every loader returns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from octavo.layers.quant_tensor import QuantTensor
from octavo.models.config import ModelConfig
from octavo.tokenizer import Tokenizer


class Checkpoint(Protocol):
    """An opened checkpoint. Opening validates everything that can be validated without reading weights."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors in the files."""
        ...

    def names(self) -> Iterable[str]:
        """Canonical Hugging Face parameter names of every tensor."""
        ...

    def __contains__(self, name: object) -> bool: ...

    def tensor(self, name: str) -> QuantTensor:
        """Raises `LoadError` naming the file and the tensor if it is missing."""
        ...

    def tokenizer(self, *, force: bool = False) -> Tokenizer:
        """Raises `LoadError` for an unknown pre-tokeniser unless `force`."""
        ...
