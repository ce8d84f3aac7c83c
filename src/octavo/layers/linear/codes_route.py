"""Quantised weights on a GPU as the file has them: few rows multiply the codes themselves, many a part of the weight
at a time that was unpacked into the compute dtype."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.triton.skinny_gemm import MAX_ROWS, SkinnyScratch, SkinnyTile, multiply_codes, unpack
from octavo.kernels.triton.skinny_pack import CHUNK_BITS, CodeMatrix, PackedCodes, pack_codes, packed_bytes
from octavo.kernels.triton.skinny_table import ROWS, bucket, codes_tiles, exact_codes_tile
from octavo.layers.linear.route import RouteProperties
from octavo.layers.quant_tensor import AffineGroups, AffineShape, QuantTensor

_UNPACKED = 1 << 25  # elements of a weight that are unpacked at a time
_EXACT_ROWS = 256  # at a time; more would need much scratch


class CodesWeight:
    """Shards may have encodings of their own: neighbours of one form are multiplied together."""

    def __init__(
        self, parts: Sequence[PackedCodes], dtype: torch.dtype, scratch: SkinnyScratch, *, exact: bool = False
    ) -> None:
        self._parts = parts
        self._dtype = dtype
        self._scratch = scratch
        self._exact = exact
        self._rows = sum(part.rows for part in parts)
        self._tiles: list[tuple[SkinnyTile, ...]] = []
        if exact:
            for part in parts:
                scratch.reserve(self._exact_tile(part, _EXACT_ROWS), _EXACT_ROWS, part.rows)
            return
        self._tiles = [codes_tiles(part.rows, part.columns, part.bits, scratch.shared_bytes) for part in parts]
        for part, tiles in zip(parts, self._tiles, strict=True):
            for rows, tile in zip(ROWS, tiles, strict=True):
                scratch.reserve(tile, rows, part.rows)

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self._parts)

    def apply(self, x: Tensor) -> Tensor:
        return self._product(x.to(self._dtype), self._dtype)

    def apply_float32(self, x: Tensor) -> Tensor:
        return self._product(x.to(self._dtype), torch.float32)

    def lookup(self, ids: Tensor) -> Tensor:
        (part,) = self._parts
        out = torch.empty(len(ids), part.columns, dtype=torch.float32, device=ids.device)
        if len(ids):
            unpack(part, ids, out)
        return out

    def _product(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        out = torch.empty(len(x), self._rows, dtype=dtype, device=x.device)
        if self._exact:
            self._multiply_exactly(x, out)
            return out
        start = 0
        for part, tiles in zip(self._parts, self._tiles, strict=True):
            y = out[:, start : start + part.rows]
            if 0 < len(x) <= MAX_ROWS:
                multiply_codes(x, part, y, tiles[bucket(len(x))], self._scratch)
            elif len(x):
                self._multiply_unpacked(x, part, y)
            start += part.rows
        return out

    def _multiply_exactly(self, x: Tensor, out: Tensor) -> None:
        """Any number of rows by one kernel, whose order of addition is the weight's own."""
        for first in range(0, len(x), _EXACT_ROWS):
            rows = x[first : first + _EXACT_ROWS]
            start = 0
            for part in self._parts:
                y = out[first : first + len(rows), start : start + part.rows]
                multiply_codes(rows, part, y, self._exact_tile(part, len(rows)), self._scratch)
                start += part.rows

    def _exact_tile(self, part: PackedCodes, rows: int) -> SkinnyTile:
        size = part.rows, part.columns, part.bits
        return exact_codes_tile(*size, rows, minima=part.pair is not None, shared_bytes=self._scratch.shared_bytes)

    def _multiply_unpacked(self, x: Tensor, part: PackedCodes, out: Tensor) -> None:
        step = max(1, _UNPACKED // part.columns)
        for start in range(0, part.rows, step):
            stop = min(start + step, part.rows)
            weight = torch.empty(stop - start, part.columns, dtype=self._dtype, device=x.device)
            unpack(part, start, weight)
            if out.dtype == self._dtype:
                out[:, start:stop] = F.linear(x, weight)
            else:
                out[:, start:stop] = torch.mm(x, weight.t(), out_dtype=torch.float32)


class CodesRoute:
    """Codes of 4 and 8 bits are kept exactly, those of 5 and 6 as 8; scales too where there are no minima.

    Where there are, both are rounded to 16 bits, which most files have them in already.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device, scratch: SkinnyScratch, *, exact: bool = False
    ) -> None:
        """With `exact` it is row-invariant."""
        self._exact = exact
        self._dtype = dtype
        self._device = device
        self._scratch = scratch

    @property
    def properties(self) -> RouteProperties:
        # |scale · (code - zero)| and |minimum| are at most twice the largest weight, each rounded by 2⁻¹¹ at most; many
        # rows multiply a weight that is rounded once more.
        return RouteProperties(
            "exact " * self._exact + "codes", self._exact, 2 * 2 * 2.0**-11 + torch.finfo(self._dtype).eps / 2
        )

    @property
    def serves_embedding(self) -> bool:
        return True

    def refusal(self, shards: Sequence[QuantTensor]) -> str | None:
        for shard in shards:
            form = shard.affine_shape()
            if form is None:
                return f"{shard.name} is {shard.format}, which is not an affine encoding"
            chunk = CHUNK_BITS // _bits(form.bits)  # columns
            uneven = chunk % form.group and form.group % chunk
            if form.group < 16 or uneven or (form.group == 16 and form.bits == 4):
                return f"{shard.name} has groups of {form.group}"
        return None

    def pack(self, shards: Sequence[QuantTensor]) -> CodesWeight:
        parts = []
        for _, group in groupby(shards, key=_form):
            groups = [shard.affine_groups() for shard in group]
            parts.append(pack_codes([_matrix(each) for each in groups if each is not None], self._device))
        return CodesWeight(parts, self._dtype, self._scratch, exact=self._exact)

    def packed_bytes(self, shard: QuantTensor) -> int:
        form = shard.affine_shape()
        assert form is not None
        return packed_bytes(shard.shape[0], shard.shape[1], _bits(form.bits), form.group)


def _form(shard: QuantTensor) -> tuple[AffineShape | None, str]:
    return shard.affine_shape(), shard.format


def _bits(bits: int) -> int:
    return 4 if bits == 4 else 8


def _matrix(groups: AffineGroups) -> CodeMatrix:
    """Codes of 5 and 6 bits become ones of 8 in the middle of their range."""
    bits = _bits(groups.bits)
    raised = (1 << (bits - 1)) - (1 << (groups.bits - 1))
    return CodeMatrix(groups.codes + raised, groups.scale, groups.minimum, groups.zero + raised, bits, groups.group)
