"""Decoding of encoded blocks to float32, bit for bit as ggml defines them. Knows no files and no tensor names.

Each decoder takes `[num_blocks, block_bytes]` uint8 and gives `[num_blocks, block_size]` float32. Products and sums
are rounded separately, in the order of ggml's reference, so that every decoder agrees on every bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.layers.quant_tensor import AffineGroups, AffineShape
from octavo.models.loaders.encodings import Encoding

# Entry b spreads the bits of byte b over eight bytes, as 16 where the bit is set: the fifth bit of eight codes.
_FIFTH_BITS = torch.tensor(
    [[16 * (byte >> bit & 1) for bit in range(8)] for byte in range(256)], dtype=torch.uint8
).view(torch.int64)


def decode_blocks(encoding: Encoding, blocks: Tensor) -> Tensor:
    """Values of the blocks: [num_blocks, block_bytes] uint8, contiguous -> [num_blocks, block_size] float32."""
    decoder = _DECODERS.get(encoding.name)
    return decoder(blocks) if decoder is not None else _decode_with_gguf(encoding, blocks)


def affine_blocks(encoding: Encoding, blocks: Tensor) -> AffineGroups | None:
    """The affine form of the blocks, with N = num_blocks and K = block_size; None if they have none."""
    form = _AFFINE.get(encoding.name)
    if form is None:
        return None
    codes, scale, minimum = form.split(blocks)
    return AffineGroups(codes, scale, minimum, form.zero, form.bits, form.group)


def affine_shape(encoding: Encoding) -> AffineShape | None:
    """The form that `affine_blocks` gives for this encoding."""
    form = _AFFINE.get(encoding.name)
    return None if form is None else AffineShape(form.bits, form.group, form.has_minimum)


def _half(blocks: Tensor, offset: int) -> Tensor:
    """The float16 at byte `offset` of every block: [num_blocks, 1] float32."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] -> [..., 2, n]: all low nibbles, then all high ones."""
    codes = torch.empty((*packed.shape[:-1], 2, packed.shape[-1]), dtype=torch.uint8)
    torch.bitwise_and(packed, 15, out=codes[..., 0, :])
    torch.bitwise_right_shift(packed, 4, out=codes[..., 1, :])
    return codes


def _fifth_bits(packed: Tensor) -> Tensor:
    """[num_blocks, 4] bytes of bits -> [num_blocks, 32] of 0 or 16."""
    return _FIFTH_BITS.view(256)[packed.int()].view(torch.uint8)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


def _q4_0(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 2:]).view(-1, 32).float()
    return values.sub_(8.0).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 4:]).view(-1, 32).float()
    return values.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _codes_q5(blocks: Tensor, offset: int) -> Tensor:
    """Codes of a Q5_0 or Q5_1 block, whose fifth bits begin at byte `offset`: [num_blocks, 32] uint8."""
    return _nibbles(blocks[:, offset + 4 :]).view(-1, 32).bitwise_or_(_fifth_bits(blocks[:, offset : offset + 4]))


def _q5_0(blocks: Tensor) -> Tensor:
    return _codes_q5(blocks, 2).float().sub_(16.0).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    return _codes_q5(blocks, 4).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and subtracted minimum of the eight groups of a Q4_K or Q5_K block: two [num_blocks, 8, 1] float32.

    Twelve bytes hold eight 6-bit scales and eight 6-bit minima: bytes 0-3 and 4-7 hold those of groups 0-3 in six
    bits; their two top bits, over the nibbles of bytes 8-11 (low: scale, high: minimum), make those of groups 4-7.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], dim=1)
    minimum = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], dim=1)
    return (_half(blocks, 0) * scale.float())[..., None], (_half(blocks, 2) * minimum.float())[..., None]


def _codes_q4_k(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)


def _codes_q5_k(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    # Bit g of byte i of the high plane belongs to value i of group g.
    shifts = torch.arange(8, dtype=torch.uint8)[None, :, None]
    codes |= ((blocks[:, None, 16:48] >> shifts) & 1) << 4
    return codes


def _codes_q6_k(blocks: Tensor) -> Tensor:
    """[num_blocks, 2, 4, 32] uint8, in the order of the values."""
    # Each half of the block: 64 bytes of low nibbles, 32 bytes whose bit pairs top up four runs of 32 values.
    codes = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    codes |= ((blocks[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3) << 4
    return codes


def _q6_k_scales(blocks: Tensor) -> Tensor:
    return _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()  # [num_blocks, 16]


def _q4_k(blocks: Tensor) -> Tensor:
    scale, minimum = _k_scales(blocks)
    return _codes_q4_k(blocks).float().mul_(scale).sub_(minimum).view(-1, 256)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, minimum = _k_scales(blocks)
    return _codes_q5_k(blocks).float().mul_(scale).sub_(minimum).view(-1, 256)


def _q6_k(blocks: Tensor) -> Tensor:
    values = _codes_q6_k(blocks).view(-1, 16, 16).float().sub_(32.0)
    return values.mul_(_q6_k_scales(blocks)[..., None]).view(-1, 256)


Split = tuple[Tensor, Tensor, Tensor | None]  # codes, scale, minimum


def _split_q4_0(blocks: Tensor) -> Split:
    return _nibbles(blocks[:, 2:]).view(-1, 32), _half(blocks, 0), None


def _split_q4_1(blocks: Tensor) -> Split:
    return _nibbles(blocks[:, 4:]).view(-1, 32), _half(blocks, 0), _half(blocks, 2)


def _split_q5_0(blocks: Tensor) -> Split:
    return _codes_q5(blocks, 2), _half(blocks, 0), None


def _split_q5_1(blocks: Tensor) -> Split:
    return _codes_q5(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _split_q8_0(blocks: Tensor) -> Split:
    return blocks[:, 2:] ^ 128, _half(blocks, 0), None  # from two's complement to an offset of 128


def _split_q4_k(blocks: Tensor) -> Split:
    scale, minimum = _k_scales(blocks)
    return _codes_q4_k(blocks).view(-1, 256), scale[..., 0], -minimum[..., 0]


def _split_q5_k(blocks: Tensor) -> Split:
    scale, minimum = _k_scales(blocks)
    return _codes_q5_k(blocks).view(-1, 256), scale[..., 0], -minimum[..., 0]


def _split_q6_k(blocks: Tensor) -> Split:
    return _codes_q6_k(blocks).view(-1, 256), _q6_k_scales(blocks), None


def _decode_with_gguf(encoding: Encoding, blocks: Tensor) -> Tensor:
    """Encodings that are rare enough to leave to the `gguf` package (Q2_K, Q3_K, IQ types)."""
    from gguf import GGMLQuantizationType, quants  # slow to import, and most files need it not

    values = quants.dequantize(blocks.numpy(), GGMLQuantizationType[encoding.name])
    return torch.from_numpy(values)


_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


@dataclass(frozen=True, slots=True)
class _AffineForm:
    split: Callable[[Tensor], Split]
    bits: int
    zero: int
    has_minimum: bool
    group: int = 32


_AFFINE: dict[str, _AffineForm] = {
    "Q4_0": _AffineForm(_split_q4_0, 4, 8, False),
    "Q4_1": _AffineForm(_split_q4_1, 4, 0, True),
    "Q5_0": _AffineForm(_split_q5_0, 5, 16, False),
    "Q5_1": _AffineForm(_split_q5_1, 5, 0, True),
    "Q8_0": _AffineForm(_split_q8_0, 8, 128, False),
    "Q4_K": _AffineForm(_split_q4_k, 4, 0, True),
    "Q5_K": _AffineForm(_split_q5_k, 5, 0, True),
    "Q6_K": _AffineForm(_split_q6_k, 6, 32, False, group=16),
}
