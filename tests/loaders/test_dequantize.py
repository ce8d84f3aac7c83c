"""Block decoders against the `gguf` package, and the slices and affine forms of encoded tensors."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant

from octavo.errors import LoadError
from octavo.layers.quant_tensor import AffineShape
from octavo.models.loaders.encoded_tensor import CHUNK_VALUES, EncodedTensor
from octavo.models.loaders.encodings import GGUF_ENCODINGS, gguf_encoding
from tests.loaders.affine import affine_values

ENCODINGS = {encoding.name: encoding for encoding in GGUF_ENCODINGS.values()}
# Byte offsets of the float16 fields in each block: random bytes there would be NaN, infinite or huge.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ3_XXS": (0,),
    "IQ1_S": (0,),
    "IQ4_NL": (0,),
    "IQ3_S": (0,),
    "IQ2_S": (0,),
    "IQ4_XS": (0,),
    "IQ1_M": (),
}


def random_tensor(name: str, num_rows: int, row_length: int, seed: int = 0) -> EncodedTensor:
    """Every code at random, scales random and finite."""
    rng = np.random.default_rng(seed)
    encoding = ENCODINGS[name]
    if encoding.is_float:
        values = torch.from_numpy(rng.standard_normal((num_rows, row_length), dtype=np.float32))
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
        data = values.to(dtype).view(torch.uint8).numpy()
    else:
        blocks = rng.integers(0, 256, (num_rows * row_length // encoding.block_size, encoding.block_bytes), np.uint8)
        for offset in HALVES[name]:
            scale = rng.standard_normal((len(blocks), 1)).astype(np.float16)
            blocks[:, offset : offset + 2] = scale.view(np.uint8)
        if name == "IQ1_M":  # its scale is spread over the top nibbles of four words
            blocks[:, 49::2] &= 0x3F
        data = blocks
    return EncodedTensor.from_bytes("w", (num_rows, row_length), encoding, data.reshape(-1))


def reference(tensor: EncodedTensor) -> torch.Tensor:
    values = gguf.quants.dequantize(np.ascontiguousarray(tensor.data), Quant[tensor.format])
    return torch.from_numpy(np.array(values, dtype=np.float32)).reshape(tensor.shape)


@pytest.mark.parametrize("name", ENCODINGS)
def test_decoded_values_equal_those_of_the_gguf_package_bit_for_bit(name: str) -> None:
    tensor = random_tensor(name, 5, 512)
    got = tensor.dequantize()
    assert torch.equal(got, reference(tensor))
    assert got.std() > 0.01


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_table_of_encodings_agrees_with_the_gguf_package(name: str) -> None:
    encoding = ENCODINGS[name]
    assert gguf_encoding(int(Quant[name]), "x") == encoding
    assert gguf.GGML_QUANT_SIZES[Quant[name]] == (encoding.block_size, encoding.block_bytes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["F32", "BF16", "Q4_1", "Q6_K", "Q8_0"])
def test_sixteen_bit_values_are_the_float32_ones_rounded_once(name: str, dtype: torch.dtype) -> None:
    tensor = random_tensor(name, 3, 256)
    got = tensor.dequantize(dtype)
    assert got.dtype == dtype
    assert torch.equal(got, reference(tensor).to(dtype))


def test_a_tensor_larger_than_the_workspace_is_decoded_in_chunks_that_join_seamlessly() -> None:
    tensor = random_tensor("Q4_0", CHUNK_VALUES // 256 * 2 + 3, 256)
    assert torch.equal(tensor.dequantize(), reference(tensor))


def test_an_unsupported_type_is_refused_with_its_name_and_what_is_supported() -> None:
    with pytest.raises(LoadError, match=r"TQ1_0.*not supported.*Q4_K"):
        gguf_encoding(int(Quant.TQ1_0), "model.gguf: tensor 'w'")
    with pytest.raises(LoadError, match="number 12345"):
        gguf_encoding(12345, "model.gguf: tensor 'w'")


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_NL"])
def test_row_and_column_slices_hold_the_same_values_as_the_whole(name: str) -> None:
    tensor = random_tensor(name, 10, 1024)
    order = np.random.default_rng(3).permutation(10)
    tensor = replace(tensor, order=order)
    whole = reference(tensor)[torch.from_numpy(order)]
    part = tensor.rows(2, 9).columns(256, 768).rows(1, 4)
    assert part.shape == (3, 512)
    assert part.num_bytes == 3 * tensor.encoding.row_bytes(512)
    assert torch.equal(part.dequantize(), whole[3:6, 256:768])
    assert torch.equal(tensor.dequantize(), whole)


def test_empty_slices_give_empty_tensors() -> None:
    tensor = random_tensor("Q8_0", 4, 64)
    assert tensor.rows(2, 2).dequantize().shape == (0, 64)
    assert tensor.columns(32, 32).dequantize().shape == (4, 0)


@pytest.mark.parametrize(("name", "size"), [("Q4_0", 32), ("Q8_0", 32), ("Q4_K", 256)])
def test_a_column_slice_that_cuts_a_block_is_refused(name: str, size: int) -> None:
    tensor = random_tensor(name, 2, 512)
    with pytest.raises(LoadError, match=rf"cut a block of {size}"):
        tensor.columns(0, size // 2)


def test_rows_of_a_vector_are_its_elements() -> None:
    values = torch.arange(12, dtype=torch.float32)
    vector = EncodedTensor.from_bytes("b", (12,), ENCODINGS["F32"], values.view(torch.uint8).numpy())
    assert torch.equal(vector.rows(3, 7).dequantize(), values[3:7])
    assert torch.equal(replace(vector, order=np.arange(12)[::-1].copy()).rows(0, 2).dequantize(), values[[11, 10]])


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_the_affine_form_is_exact(name: str) -> None:
    tensor = replace(random_tensor(name, 6, 512), order=np.array([5, 0, 4, 1, 3, 2]))
    groups = tensor.affine_groups()
    assert groups is not None
    shape = tensor.affine_shape()
    assert shape == AffineShape(groups.bits, groups.group, groups.minimum is not None)
    assert groups.group == (16 if name == "Q6_K" else 32)
    assert groups.codes.dtype == torch.uint8
    assert groups.bits == int(name[1])
    assert int(groups.codes.max()) < 2**groups.bits
    assert torch.equal(affine_values(groups), tensor.dequantize())


@pytest.mark.parametrize("name", ["F32", "BF16", "Q2_K", "IQ4_NL"])
def test_other_encodings_have_no_affine_form(name: str) -> None:
    tensor = random_tensor(name, 2, 256)
    assert tensor.affine_groups() is None
    assert tensor.affine_shape() is None
