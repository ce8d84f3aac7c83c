"""Weights of 4- and 8-bit codes as `skinny_codes.py` reads them: a lane loads the very codes that it multiplies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_BITS = 512  # of a row of the weight: what four lanes load at once
_SLICE = 1 << 24  # codes that are packed at a time


@dataclass(frozen=True, slots=True)
class CodeMatrix:
    """w[n, k] = (codes[n, k] - zero) * scale[n, k // group] + minimum[n, k // group].

    codes [N, K] uint8 below 2 ** bits (4 or 8), scale and minimum [N, K / group] float32; group is a multiple of 32.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None
    zero: int
    bits: int
    group: int


@dataclass(frozen=True, slots=True)
class PackedCodes:
    """A weight [N, K] on one device.

    `codes` [chunks, N, 4, 4] int32: a chunk is 512 / bits columns, zeros past the last one. `scales` [groups / S, N, S]
    with S scales for each chunk, or one for several: float32 where there is no minimum; else int32, the scale in the
    lower half and the minimum in the upper, both of dtype `pair`. `shift` is half the codes' range less zero.
    """

    codes: Tensor
    scales: Tensor
    pair: torch.dtype | None
    bits: int
    group: int
    shift: int
    columns: int

    @property
    def scales_per_chunk(self) -> int:
        return self.scales.shape[2]

    @property
    def chunks_per_scale(self) -> int:
        return max(1, self.group * self.bits // CHUNK_BITS)

    @property
    def rows(self) -> int:
        return self.codes.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.codes.numel() * 4 + self.scales.numel() * 4


def packed_bytes(rows: int, columns: int, bits: int, group: int) -> int:
    """Bytes that a weight [rows, columns] takes packed."""
    width = _width(columns, bits)
    return rows * (width * bits // 8 + 4 * -(-width // group))


def pack_codes(parts: Sequence[CodeMatrix], device: torch.device) -> PackedCodes:
    """Stack parts [N_i, K] of one form along N. Where there are minima they and the scales are rounded to 16 bit."""
    first = parts[0]
    columns, bits = first.codes.shape[1], first.bits
    width = _width(columns, bits)
    words = torch.empty(
        width * bits // CHUNK_BITS, sum(len(p.codes) for p in parts), 4, 4, dtype=torch.int32, device=device
    )
    start, step = 0, max(1, _SLICE // width)
    for part in parts:
        for codes in part.codes.split(step):
            words[:, start : start + len(codes)] = _words(F.pad(codes.to(device), (0, width - columns)), bits)
            start += len(codes)
    half = 1 << (bits - 1)
    scales = _by_chunk([part.scale for part in parts], width, first, device)
    pair = None
    if first.minimum is not None or first.zero != half:
        minima = [torch.zeros_like(part.scale) if part.minimum is None else part.minimum for part in parts]
        both = torch.stack((scales, _by_chunk(minima, width, first, device)), dim=-1)
        pair = _narrow_dtype(both)
        scales = both.to(pair).view(torch.int32)[..., 0].contiguous()
    return PackedCodes(words, scales, pair, bits, first.group, half - first.zero, columns)


def unpack_codes(packed: PackedCodes, rows: slice | Tensor) -> Tensor:
    """Some rows, given as a slice or as int64 indices [R], as float32 [R, K]."""
    words = packed.codes[:, rows].contiguous().view(torch.int16).to(torch.int32)
    fields = torch.arange(16 // packed.bits, device=words.device, dtype=torch.int32) * packed.bits
    codes = (words[..., None] >> fields) & ((1 << packed.bits) - 1)
    codes = codes.view(*words.shape[:2], 4, *_FIELDS[packed.bits]).permute(_TO_COLUMNS[packed.bits])
    values = (codes.flatten(1) - ((1 << (packed.bits - 1)) - packed.shift)).float()
    scales = packed.scales[:, rows].transpose(0, 1).flatten(1)
    if packed.pair is None:
        return _each(values, torch.mul, scales, packed)
    both = scales.contiguous().view(packed.pair).view(*scales.shape, 2).float()
    return _each(_each(values, torch.mul, both[..., 0], packed), torch.add, both[..., 1], packed)


# What a lane's 16-bit words hold, next to the columns that they are of: with two of a matrix fragment's neighbouring
# columns in the halves of a 32-bit word, lane l of four has columns 2 l and 2 l + 1 of every eight.
_FIELDS = {4: (4, 2, 2, 2), 8: (2, 2, 2, 2)}  # 32 columns, odd, 16, 8; 32 columns, 16, odd, 8
_TO_COLUMNS = {4: (1, 0, 3, 5, 6, 2, 4), 8: (1, 0, 3, 4, 6, 2, 5)}  # row, chunk, 32 columns, 16, 8, lane, odd
_TO_WORDS = {4: (1, 0, 5, 2, 6, 3, 4), 8: (1, 0, 5, 2, 3, 6, 4)}


def _words(codes: Tensor, bits: int) -> Tensor:
    """codes [N, K] uint8 -> [chunks, N, 4, 4] int32."""
    parts = CHUNK_BITS // bits // 32
    columns = codes.view(len(codes), -1, parts, 2, 2, 4, 2).permute(_TO_WORDS[bits])
    fields = columns.reshape(*columns.shape[:2], 4, 8, 16 // bits)
    words = torch.zeros(fields.shape[:4], dtype=torch.int32, device=codes.device)
    for place in range(16 // bits):
        words |= fields[..., place].to(torch.int32) << (bits * place)
    return words.to(torch.int16).view(torch.int32)


def _width(columns: int, bits: int) -> int:
    chunk = CHUNK_BITS // bits
    return -(-columns // chunk) * chunk


def _by_chunk(parts: Sequence[Tensor], width: int, form: CodeMatrix, device: torch.device) -> Tensor:
    """[N_i, K / group] float32 each -> [groups / scales per chunk, N, scales per chunk]."""
    whole = torch.cat([part.to(device) for part in parts])
    groups = -(-width // form.group)
    per_chunk = max(1, CHUNK_BITS // form.bits // form.group)
    whole = F.pad(whole, (0, groups - whole.shape[1]))
    return whole.view(len(whole), -1, per_chunk).transpose(0, 1).contiguous()


def _narrow_dtype(values: Tensor) -> torch.dtype:
    """The 16-bit dtype that rounds numbers least, relative to each: float16 but for tiny and huge ones."""
    errors = {
        dtype: float(((values.to(dtype).float() - values).abs() / values.abs().clamp_min(1e-30)).max())
        for dtype in (torch.float16, torch.bfloat16)
    }
    return min(errors, key=lambda dtype: errors[dtype])


def _each(values: Tensor, operation: Callable[[Tensor, Tensor], Tensor], scales: Tensor, packed: PackedCodes) -> Tensor:
    """One of scales [R, groups] for each of its columns, applied to values [R, width] -> [R, K]."""
    wide = scales.repeat_interleave(packed.group, dim=1)[:, : packed.columns]
    return operation(values[:, : packed.columns], wide)
