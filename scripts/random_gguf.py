"""Writes a GGUF file of a model's shapes and types with random weights, for speed and memory: it says nothing sensible.

    python -m scripts.random_gguf qwen2.5-coder-1.5b TOKENIZER.gguf OUT.gguf

The tokenizer is that of an existing file. Tensors have the types that llama.cpp's Q4_K_M gives them, with tied
embeddings. One tensor at a time is in memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

BLOCK = 256  # elements of a block of Q4_K or Q6_K
_SCALES = 4096  # sets of scales of a Q4_K block that are drawn


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2 model's. Columns of weights (`hidden`, `intermediate`, heads times their size) are multiples of 256."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    context: int = 32768
    rope_theta: float = 1e6
    eps: float = 1e-6

    @property
    def kv_columns(self) -> int:
        return self.hidden // self.heads * self.kv_heads


SHAPES = {"qwen2.5-coder-1.5b": Shape(hidden=1536, intermediate=8960, layers=28, heads=12, kv_heads=2)}


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor [rows, columns], or [columns] where rows is 0. `kind` F32: a norm's ones, or a small bias."""

    name: str
    rows: int
    columns: int
    kind: Type

    @property
    def byte_shape(self) -> tuple[int, ...]:
        """Of what is stored, in bytes but for F32."""
        if self.kind is Type.F32:
            return (self.columns,)
        return self.rows, self.columns // BLOCK * gguf.GGML_QUANT_SIZES[self.kind][1]

    def draw(self, rng: np.random.Generator) -> NDArray[np.uint8] | NDArray[np.float32]:
        """Values of mean 0 and variance 1 / columns, so that products keep the size of what they multiply."""
        if self.kind is Type.F32:
            if self.name.endswith("bias"):
                return rng.normal(scale=0.1, size=self.columns).astype(np.float32)
            return np.ones(self.columns, dtype=np.float32)
        draw = _q4_k if self.kind is Type.Q4_K else _q6_k
        return draw(rng, self.rows * self.columns // BLOCK, self.columns**-0.5).reshape(self.byte_shape)


def weights(shape: Shape, vocab_size: int) -> Iterator[Weight]:
    """In the order of the file."""
    yield Weight("token_embd.weight", vocab_size, shape.hidden, Type.Q6_K)
    yield Weight("output_norm.weight", 0, shape.hidden, Type.F32)
    for layer in range(shape.layers):
        wide = Type.Q6_K if _has_more_bits(layer, shape.layers) else Type.Q4_K
        parts = {
            "attn_norm.weight": (0, shape.hidden, Type.F32),
            "attn_q.weight": (shape.hidden, shape.hidden, Type.Q4_K),
            "attn_q.bias": (0, shape.hidden, Type.F32),
            "attn_k.weight": (shape.kv_columns, shape.hidden, Type.Q4_K),
            "attn_k.bias": (0, shape.kv_columns, Type.F32),
            "attn_v.weight": (shape.kv_columns, shape.hidden, wide),
            "attn_v.bias": (0, shape.kv_columns, Type.F32),
            "attn_output.weight": (shape.hidden, shape.hidden, Type.Q4_K),
            "ffn_norm.weight": (0, shape.hidden, Type.F32),
            "ffn_gate.weight": (shape.intermediate, shape.hidden, Type.Q4_K),
            "ffn_up.weight": (shape.intermediate, shape.hidden, Type.Q4_K),
            "ffn_down.weight": (shape.hidden, shape.intermediate, wide),
        }
        for name, (rows, columns, kind) in parts.items():
            yield Weight(f"blk.{layer}.{name}", rows, columns, kind)


def write(path: Path, shape: Shape, tokenizer: Path, name: str, seed: int = 0) -> None:
    """Write the file. `tokenizer` is a GGUF file whose vocabulary it gets.

    Raises `ValueError` if it is none or has none, `OSError` if a file cannot be read or written.
    """
    source = gguf.GGUFReader(tokenizer)
    if "tokenizer.ggml.tokens" not in source.fields:
        raise ValueError("the file has no vocabulary")
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name(f"{name}, random weights")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, found in source.fields.items():
        if key.startswith("tokenizer."):
            writer.add_key_value(key, found.contents(), found.types[0], found.types[-1])
    vocab_size = len(source.fields["tokenizer.ggml.tokens"].data)
    everything = list(weights(shape, vocab_size))
    for each in everything:
        kind, size = (np.float32, 4) if each.kind is Type.F32 else (np.uint8, 1)
        num_bytes = int(np.prod(each.byte_shape)) * size
        writer.add_tensor_info(each.name, each.byte_shape, np.dtype(kind), num_bytes, each.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for each in everything:
        writer.write_tensor_data(each.draw(rng))
    writer.close()


def _has_more_bits(layer: int, num_layers: int) -> bool:
    """Whether Q4_K_M keeps a layer's values and down projection in Q6_K: the first and last eighth, and each third."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _q4_k(rng: np.random.Generator, num_blocks: int, std: float) -> NDArray[np.uint8]:
    """Blocks [num_blocks, 144]: d, dmin, eight scales and minima of 6 bits, 256 codes. Value: d · s · (q - 7.5)."""
    blocks = rng.integers(0, 256, (num_blocks, 144), dtype=np.uint8)
    scales = rng.integers(32, 64, (_SCALES, 8), dtype=np.uint8)
    low, high = scales[:, :4], scales[:, 4:]
    first = low | high >> 4 << 6
    packed = np.concatenate((first, first, (high & 15) * 17), axis=1)  # a minimum is the scale's code over again
    blocks[:, 4:16] = packed[rng.integers(0, _SCALES, num_blocks)]
    d = std / (np.sqrt((scales.astype(np.float64) ** 2).mean()) * np.sqrt((16**2 - 1) / 12))
    blocks[:, :4] = np.array([d, 7.5 * d], dtype="<f2").view(np.uint8)
    return blocks


def _q6_k(rng: np.random.Generator, num_blocks: int, std: float) -> NDArray[np.uint8]:
    """Blocks [num_blocks, 210]: 256 codes of 6 bits, 16 signed scales, d. Value: d · s · (q - 32)."""
    blocks = rng.integers(0, 256, (num_blocks, 210), dtype=np.uint8)
    scales = rng.integers(64, 128, (num_blocks, 16), dtype=np.int8) * rng.choice(np.array([-1, 1], np.int8), 16)
    blocks[:, 192:208] = scales.view(np.uint8)
    d = std / (np.sqrt((scales.astype(np.float64) ** 2).mean()) * np.sqrt((64**2 - 1) / 12))
    blocks[:, 208:] = np.array([d], dtype="<f2").view(np.uint8)
    return blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("tokenizer", type=Path, help="GGUF file whose tokenizer it gets")
    parser.add_argument("out", type=Path, help="file to write")
    given = parser.parse_args()
    try:
        write(given.out, SHAPES[given.shape], given.tokenizer, given.shape)
    except (OSError, ValueError) as error:
        parser.error(f"{given.out} cannot be written with the tokenizer of {given.tokenizer}: {error}")


if __name__ == "__main__":
    main()
