"""What the checkpoints of all formats share: a table of lazy tensors under canonical names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

from octavo.errors import LoadError
from octavo.layers.quant_tensor import QuantTensor
from octavo.models.config import ModelConfig


class TensorTable:
    """The part of `Checkpoint` that does not depend on the file format. Immutable."""

    def __init__(self, path: Path, config: ModelConfig, tensors: Mapping[str, QuantTensor]) -> None:
        self._path = path
        self._config = config
        self._tensors = tensors

    @property
    def path(self) -> Path:
        return self._path

    @property
    def config(self) -> ModelConfig:
        return self._config

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all tensors in the files."""
        return sum(tensor.num_bytes for tensor in self._tensors.values())

    def names(self) -> Iterable[str]:
        """Canonical Hugging Face parameter names of every tensor."""
        return self._tensors.keys()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> QuantTensor:
        """Raises `LoadError` naming the file and the tensor if it is missing."""
        if name not in self._tensors:
            raise LoadError(f"{self._path}: has no tensor {name!r}; the file does not fit this model")
        return self._tensors[name]
