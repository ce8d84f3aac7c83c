"""Decoding of encoded blocks to float32, bit for bit as ggml defines them. Knows no files and no tensor names.

Each decoder takes `[num_blocks, block_bytes]` uint8 and gives `[num_blocks, block_size]` float32. Products and sums
are rounded separately, in the order of ggml's reference, so that every decoder agrees on every bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.layers.quant_tensor import AffineGroups
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
    """The 4-bit affine form of the blocks, with N = num_blocks and K = block_size; None if they have none."""
    splitter = _SPLITTERS.get(encoding.name)
    if splitter is None:
        return None
    codes, scale, minimum = splitter(blocks)
    return AffineGroups(codes, scale, minimum, group=32)


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


def _q5_0(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 6:]).view(-1, 32).bitwise_or_(_fifth_bits(blocks[:, 2:6]))
    return codes.float().sub_(16.0).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 8:]).view(-1, 32).bitwise_or_(_fifth_bits(blocks[:, 4:8]))
    return codes.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


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


def _q4_k(blocks: Tensor) -> Tensor:
    scale, minimum = _k_scales(blocks)
    codes = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return codes.float().mul_(scale).sub_(minimum).view(-1, 256)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, minimum = _k_scales(blocks)
    codes = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    # Bit g of byte i of the high plane belongs to value i of group g.
    shifts = torch.arange(8, dtype=torch.uint8)[None, :, None]
    codes |= ((blocks[:, None, 16:48] >> shifts) & 1) << 4
    return codes.float().mul_(scale).sub_(minimum).view(-1, 256)


def _q6_k(blocks: Tensor) -> Tensor:
    scale = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()  # [num_blocks, 16]
    # Each half of the block: 64 bytes of low nibbles, 32 bytes whose bit pairs top up four runs of 32 values.
    codes = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    codes |= ((blocks[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3) << 4
    return codes.view(-1, 16, 16).float().sub_(32.0).mul_(scale[..., None]).view(-1, 256)


def _split_q4_0(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]).view(-1, 32), scale, scale * -8.0


def _split_q4_1(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _nibbles(blocks[:, 4:]).view(-1, 32), _half(blocks, 0), _half(blocks, 2)


def _split_q4_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale, minimum = _k_scales(blocks)
    codes = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 256)
    return codes, scale[..., 0], -minimum[..., 0]


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

_SPLITTERS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "Q4_0": _split_q4_0,
    "Q4_1": _split_q4_1,
    "Q4_K": _split_q4_k,
}
