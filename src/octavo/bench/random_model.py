"""A model of random weights from its config.json alone, for speed: what it says means nothing. No command's model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.layers.quant_tensor import AffineGroups, AffineShape
from octavo.models.loaders.checkpoint_base import TensorTable
from octavo.models.loaders.expected import expected_shapes
from octavo.models.loaders.hf_config import model_config, read_json
from octavo.tokenizer import Tokenizer

_POOL = 1 << 24  # values drawn; larger tensors repeat them, from another place on for each


class RandomCheckpoint(TensorTable):
    """Implements `Checkpoint` from a directory that holds a config.json."""

    @classmethod
    def open(cls, directory: Path) -> RandomCheckpoint:
        """Raises `LoadError` for a config that cannot be read or served."""
        settings = read_json(directory / "config.json")
        tied = bool(settings.get("tie_word_embeddings"))
        num_tensors = 1 << 20  # that are in no file: nothing bounds the number of layers
        config = model_config(directory / "config.json", settings, {}, num_tensors, has_lm_head=not tied)
        pool = RandomPool(_std(settings))
        tensors = {
            name: RandomTensor(name, shape, pool, index)
            for index, (name, shape) in enumerate(expected_shapes(config).items())
        }
        return cls(directory, config, tensors)

    def tokenizer(self, *, force: bool = False) -> Tokenizer:
        del force
        return mock_tokenizer()


def _std(settings: Mapping[str, Any]) -> float:
    return float(settings.get("initializer_range", 0.02))


class RandomPool:
    """Normal values, the same in each process; rounded to a dtype, and brought to a device, once for all tensors."""

    def __init__(self, std: float) -> None:
        self._values = torch.randn(_POOL, generator=torch.Generator().manual_seed(0)).mul_(std)
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def values(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        if (device, dtype) not in self._copies:
            self._copies[device, dtype] = self._values.to(device).to(dtype)
        return self._copies[device, dtype]


@dataclass(frozen=True, slots=True, eq=False)
class RandomTensor:
    """Implements `ComputedTensor`: normal values from `pool`; vectors are norms' weights (1) and biases (0)."""

    name: str
    shape: tuple[int, ...]
    pool: RandomPool
    index: int

    @property
    def format(self) -> str:
        return "BF16"

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * 2

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.values_on(torch.device("cpu"), dtype)

    def values_on(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        if len(self.shape) == 1:
            return torch.full(self.shape, 0.0 if self.name.endswith("bias") else 1.0, dtype=dtype, device=device)
        pool, size = self.pool.values(device, dtype), math.prod(self.shape)
        out = torch.empty(size, dtype=dtype, device=device)
        start = self.index * 7919 % _POOL
        done = 0
        while done < size:
            count = min(size - done, _POOL - start)
            out[done : done + count] = pool[start : start + count]
            done, start = done + count, 0
        return out.view(self.shape)

    def rows(self, start: int, stop: int) -> RandomTensor:
        return replace(self, shape=(stop - start, *self.shape[1:]))

    def columns(self, start: int, stop: int) -> RandomTensor:
        return replace(self, shape=(self.shape[0], stop - start))

    def affine_groups(self) -> AffineGroups | None:
        return None

    def affine_shape(self) -> AffineShape | None:
        return None
