"""Encoded blocks of random codes, and what packing them has to come to."""

from __future__ import annotations

import numpy as np
import torch

from octavo.kernels.cpu.linear import PackedAffine
from octavo.kernels.cpu.matrices import EncodedMatrix
from octavo.layers.linear.affine_route import AffineRoute
from octavo.models.loaders.encoded_tensor import EncodedTensor
from octavo.models.loaders.encodings import GGUF_ENCODINGS

# Where the float16 numbers of a block lie.
NUMBERS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
ENCODINGS = {encoding.name: encoding for encoding in GGUF_ENCODINGS.values() if encoding.name in NUMBERS}


def draw_tensor(name: str, rows: int, blocks: int, *, size: float = 0.1, order: bool = False) -> EncodedTensor:
    """Every code and every scale of a group at random, the block's own numbers of both signs and at most `size`."""
    encoding = ENCODINGS[name]
    rng = np.random.default_rng(rows)
    data = rng.integers(0, 256, (rows, blocks, encoding.block_bytes), dtype=np.uint8)
    for at in NUMBERS[name]:
        numbers = (rng.uniform(-size, size, (rows, blocks))).astype(np.float16)
        data[:, :, at : at + 2] = numbers[..., None].view(np.uint8)
    shape = (rows, blocks * encoding.block_size)
    return EncodedTensor(
        "w", shape, encoding, data.reshape(rows, -1), rng.permutation(rows).astype(np.int64) if order else None
    )


def assert_packs_as_its_codes_do(tensor: EncodedTensor) -> None:
    """Straight from the blocks: the same numbers, to the bit, as by way of codes and float32 scales."""
    straight = AffineRoute().pack([tensor]).packed
    matrix = AffineRoute.matrix(_Unmapped(tensor))
    assert not isinstance(matrix, EncodedMatrix)
    by_codes = PackedAffine([matrix])
    assert straight.num_bytes == by_codes.num_bytes
    every = torch.arange(tensor.shape[0])
    looked_up = straight.lookup(every)
    assert torch.equal(looked_up, by_codes.lookup(every))
    values = tensor.dequantize()
    close = torch.allclose(looked_up, values, rtol=2**-9, atol=2**-9 * float(values.abs().max()))
    assert close and not torch.allclose(looked_up * 1.01, values, rtol=2**-9, atol=0)
    x = torch.randn(3, tensor.shape[1], generator=torch.Generator().manual_seed(0))
    assert torch.equal(straight.multiply(x), by_codes.multiply(x))


class _Unmapped:
    """A tensor that says nothing of its blocks."""

    def __init__(self, tensor: EncodedTensor) -> None:
        self.name, self.shape, self.format, self.num_bytes = (
            tensor.name,
            tensor.shape,
            tensor.format,
            tensor.num_bytes,
        )
        self.affine_shape, self.affine_groups = tensor.affine_shape, tensor.affine_groups
        self.dequantize, self.rows, self.columns = tensor.dequantize, tensor.rows, tensor.columns
