"""MLX's affine quantisation: `w = scale * code + bias` over groups of a row, codes packed in 32-bit words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.errors import LoadError
from octavo.layers.quant_tensor import AffineGroups, AffineShape
from octavo.models.loaders.encoded_tensor import CHUNK_VALUES, EncodedTensor
from octavo.models.loaders.fields import Fields
from octavo.models.loaders.mapped_file import Bytes
from octavo.models.loaders.safetensors_file import StoredArray

BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, slots=True, eq=False)
class AffineTensor:
    """Implements `QuantTensor`. `codes` [N, K * bits / 8] are the words' little-endian bytes, first value lowest;
    `scales` and `biases` are float tensors [N, K / group]."""

    name: str
    codes: Bytes
    scales: EncodedTensor
    biases: EncodedTensor
    bits: int
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.codes), self.codes.shape[1] * 8 // self.bits

    @property
    def format(self) -> str:
        return f"mlx-{self.bits}bit-g{self.group}"

    @property
    def num_bytes(self) -> int:
        return self.codes.size + self.scales.num_bytes + self.biases.num_bytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values, a fresh contiguous CPU tensor of `shape`. Computed in float32, rounded once to `dtype`."""
        out = torch.empty(self.shape, dtype=dtype)
        scales, biases = self.scales.dequantize(), self.biases.dequantize()
        for start, codes in self._code_chunks():
            stop = start + len(codes)
            values = codes.view(len(codes), -1, self.group).float()
            values.mul_(scales[start:stop, :, None]).add_(biases[start:stop, :, None])
            out[start:stop] = values.view(len(codes), -1)
        return out

    def rows(self, start: int, stop: int) -> AffineTensor:
        """Rows `[start, stop)`."""
        return replace(
            self,
            codes=self.codes[start:stop],
            scales=self.scales.rows(start, stop),
            biases=self.biases.rows(start, stop),
        )

    def columns(self, start: int, stop: int) -> AffineTensor:
        """Columns `[start, stop)`. Raises `LoadError` if that cuts a quantisation group."""
        if start % self.group or stop % self.group:
            raise LoadError(
                f"{self.name}: columns {start} to {stop} cut a group of {self.group} values ({self.format}); "
                f"split it at multiples of {self.group}"
            )
        return replace(
            self,
            codes=self.codes[:, start * self.bits // 8 : stop * self.bits // 8],
            scales=self.scales.columns(start // self.group, stop // self.group),
            biases=self.biases.columns(start // self.group, stop // self.group),
        )

    def affine_shape(self) -> AffineShape:
        """What `affine_groups` holds."""
        return AffineShape(self.bits, self.group, has_minimum=True)

    def affine_groups(self) -> AffineGroups:
        """The same numbers."""
        codes = torch.empty(self.shape, dtype=torch.uint8)
        for start, part in self._code_chunks():
            codes[start : start + len(part)] = part
        return AffineGroups(codes, self.scales.dequantize(), self.biases.dequantize(), 0, self.bits, self.group)

    def _code_chunks(self) -> Iterator[tuple[int, Tensor]]:
        """(first row, codes [rows, K] uint8) of runs of whole rows, copied from the file."""
        step = max(1, CHUNK_VALUES // max(1, self.shape[1]))
        for start in range(0, len(self.codes), step):
            packed = torch.from_numpy(np.array(self.codes[start : start + step], order="C", copy=True))
            if self.bits == 4:
                packed = torch.stack([packed & 15, packed >> 4], dim=-1).view(len(packed), -1)
            yield start, packed


@dataclass(frozen=True, slots=True)
class AffineScheme:
    bits: int
    group: int


class MLXQuantization:
    """The `quantization` object of a config.json: one scheme, and overrides by module path."""

    def __init__(self, path: Path, settings: Mapping[str, Any], *, prefix: str = "") -> None:
        """`prefix` is what canonical module paths have in front of them in this file. Raises `LoadError`."""
        mode = settings.get("mode", "affine")
        if mode != "affine":
            raise LoadError(f"{path}: MLX quantisation mode {mode!r} is not supported; affine is")
        self._default = _scheme(path, settings)
        self._overrides = {
            module.removeprefix(prefix): _scheme(path, self._merged(settings, value))
            for module, value in settings.items()
            if isinstance(value, dict)
        }

    def scheme(self, module: str) -> AffineScheme:
        """The scheme of the module with this canonical path (`model.layers.0.mlp.up_proj`)."""
        return self._overrides.get(module, self._default)

    @staticmethod
    def _merged(settings: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
        base = {key: settings[key] for key in ("bits", "group_size", "mode") if key in settings}
        return base | dict(override)


def affine_tensor(
    path: Path,
    name: str,
    weight: StoredArray,
    scales: EncodedTensor,
    biases: EncodedTensor | None,
    scheme: AffineScheme,
) -> AffineTensor:
    """A tensor from its three arrays, `name` being canonical. Raises `LoadError` where their shapes disagree."""
    where = f"{path}: tensor {name!r}"
    if weight.dtype != "U32" or len(weight.shape) != 2:
        raise LoadError(f"{where} has scales, but is {weight.dtype} {list(weight.shape)}; MLX packs a matrix in U32")
    if biases is None:
        raise LoadError(f"{where} has scales but no biases; only affine MLX quantisation is supported")
    num_rows, num_words = weight.shape
    num_columns = num_words * 32 // scheme.bits
    wanted = (num_rows, num_columns // scheme.group)
    if num_columns % scheme.group or scales.shape != wanted or biases.shape != wanted:
        raise LoadError(
            f"{where} of {num_columns} columns in {scheme.bits} bits and groups of {scheme.group} needs scales and "
            f"biases of {list(wanted)}, but they are {list(scales.shape)} and {list(biases.shape)}"
        )
    return AffineTensor(name, weight.data.reshape(num_rows, -1), scales, biases, scheme.bits, scheme.group)


def _scheme(path: Path, settings: Mapping[str, Any]) -> AffineScheme:
    fields = Fields(path, settings)
    bits, group = fields.integer("bits"), fields.integer("group_size")
    if bits not in BITS:
        raise fields.fail("bits", "4 or 8 (other MLX widths are not supported)")
    if group not in GROUP_SIZES:
        raise fields.fail("group_size", "32, 64 or 128")
    if settings.get("mode", "affine") != "affine":
        raise fields.fail("mode", "'affine'")
    return AffineScheme(bits, group)
