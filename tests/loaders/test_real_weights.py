"""Real checkpoints: values against the `gguf` package, tokenizers, and how fast a file opens and decodes."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from octavo.models.loaders import open_checkpoint
from octavo.models.loaders.gguf import GGUFCheckpoint
from octavo.models.loaders.gguf_file import GGUFFile
from tests.conftest import weights_path
from tests.loaders.affine import affine_values

pytestmark = pytest.mark.weights
ALIASES = ("smollm2", "gemma3", "qwen05")


def stored_values(path: Path, name: str) -> torch.Tensor:
    """A tensor's bytes, decoded by the `gguf` package. (Its reader needs many seconds for a large vocabulary.)"""
    file = GGUFFile.open(path)
    entry = file.entries[name]
    data = np.array(file.data[entry.offset : entry.offset + entry.num_bytes]).reshape(entry.shape[0], -1)
    values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[entry.encoding.name])
    return torch.from_numpy(values.reshape(entry.shape))


def test_the_table_of_tensors_is_the_one_that_the_gguf_package_reads() -> None:
    path = weights_path("smollm2")
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    ours = GGUFFile.open(path).entries
    assert set(ours) == set(theirs)
    for name, entry in ours.items():
        tensor = theirs[name]
        assert entry.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert entry.encoding.name == tensor.tensor_type.name
        assert (entry.offset, entry.num_bytes) == (tensor.data_offset, tensor.n_bytes)


@pytest.mark.parametrize(
    ("alias", "stored", "canonical"),
    [
        ("smollm2", "blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"),
        ("smollm2", "blk.29.attn_v.weight", "model.layers.29.self_attn.v_proj.weight"),
        ("gemma3", "blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
        ("gemma3", "blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight"),
        ("gemma3", "blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("gemma3", "blk.5.ffn_norm.weight", "model.layers.5.pre_feedforward_layernorm.weight"),
        ("qwen05", "blk.11.attn_k.weight", "model.layers.11.self_attn.k_proj.weight"),
        ("qwen05", "blk.11.attn_k.bias", "model.layers.11.self_attn.k_proj.bias"),
        ("qwen05", "blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ],
)
def test_values_equal_those_of_the_gguf_package_bit_for_bit(alias: str, stored: str, canonical: str) -> None:
    path = weights_path(alias)
    expected = stored_values(path, stored)
    if alias == "gemma3" and stored.endswith("norm.weight"):
        expected = expected - 1
    assert torch.equal(open_checkpoint(path).tensor(canonical).dequantize(), expected)


@pytest.mark.parametrize(("stored", "canonical", "num_heads"), [("attn_q", "q_proj", 9), ("attn_k", "k_proj", 3)])
def test_smollm2_q_and_k_are_the_files_rows_in_hugging_face_order(stored: str, canonical: str, num_heads: int) -> None:
    path = weights_path("smollm2")
    interleaved = stored_values(path, f"blk.4.{stored}.weight")
    got = open_checkpoint(path).tensor(f"model.layers.4.self_attn.{canonical}.weight").dequantize()
    for head in range(num_heads):
        rows = interleaved[64 * head : 64 * (head + 1)]
        assert torch.equal(got[64 * head : 64 * head + 32], rows[0::2])
        assert torch.equal(got[64 * head + 32 : 64 * head + 64], rows[1::2])


def test_configurations_hold_the_published_facts() -> None:
    smollm2 = open_checkpoint(weights_path("smollm2")).config
    assert (smollm2.model_type, smollm2.vocab_size, smollm2.head_dim) == ("llama", 49_152, 64)
    assert (smollm2.rope_theta, smollm2.tie_word_embeddings, smollm2.eos_token_ids) == (100_000.0, True, (2,))
    qwen = open_checkpoint(weights_path("qwen05")).config
    assert (qwen.model_type, qwen.attention_bias, qwen.attention_out_bias) == ("qwen2", True, False)
    assert (qwen.tie_word_embeddings, qwen.num_key_value_heads) == (False, 2)
    gemma = open_checkpoint(weights_path("gemma3")).config
    assert (gemma.model_type, gemma.sliding_window, gemma.query_pre_attn_scalar) == ("gemma3_text", 512, 256.0)
    assert (gemma.rope_theta, gemma.rope_local_theta) == (1_000_000.0, 10_000.0)
    assert [index for index, kind in enumerate(gemma.layer_types) if kind == "full_attention"] == [5, 11, 17]


@pytest.mark.parametrize("alias", ALIASES)
def test_a_file_opens_in_a_second_of_processor_time_without_reading_its_weights(alias: str) -> None:
    path = weights_path(alias)
    start = time.process_time()
    checkpoint = open_checkpoint(path)
    assert time.process_time() - start < 1.0
    assert path.stat().st_size * 0.9 < checkpoint.num_bytes < path.stat().st_size


def test_the_affine_form_of_a_whole_model_decodes_to_its_values() -> None:
    checkpoint = open_checkpoint(weights_path("smollm2"))
    matrices = [checkpoint.tensor(name) for name in checkpoint.names() if "proj" in name]
    assert {tensor.format for tensor in matrices} == {"Q4_1"}
    for tensor in matrices[::30]:
        groups = tensor.affine_groups()
        assert groups is not None
        assert torch.equal(affine_values(groups), tensor.dequantize())


@pytest.mark.parametrize("alias", ALIASES)
def test_the_tokenizer_and_the_model_agree_on_the_vocabulary(alias: str) -> None:
    checkpoint = open_checkpoint(weights_path(alias))
    assert isinstance(checkpoint, GGUFCheckpoint)
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == checkpoint.config.vocab_size
    tokenizer = checkpoint.tokenizer()
    text = "The quick brown fox, 42 times."
    assert tokenizer.decode(tokenizer.encode(text)).strip().endswith(text)
