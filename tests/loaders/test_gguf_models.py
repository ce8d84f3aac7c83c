"""GGUF files of every family give back the original model's names, values and configuration (R037, R039, R044)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, VOCAB_SIZE, save_gguf, save_hf, tiny_model
from transformers import PreTrainedModel

from octavo.errors import LoadError
from octavo.models.config import ModelConfig, RopeScaling
from octavo.models.loaders import open_checkpoint
from octavo.models.loaders.checkpoint_base import TensorTable
from tests.loaders.affine import affine_values


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    state = {name: value.float() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def assert_same_tensors(checkpoint: TensorTable, expected: dict[str, torch.Tensor]) -> None:
    assert set(checkpoint.names()) == set(expected)
    for name, value in expected.items():
        tensor = checkpoint.tensor(name)
        assert tensor.name == name
        assert tensor.shape == tuple(value.shape)
        assert torch.equal(tensor.dequantize(), value), name


def rounded(config: ModelConfig) -> ModelConfig:
    """GGUF holds floats in 32 bits."""
    return replace(config, rms_norm_eps=float(np.float32(config.rms_norm_eps)))


LLAMA_SHAPES = {
    "8-heads-2-kv": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "8-heads-8-kv": {"num_attention_heads": 8, "num_key_value_heads": 8},
    "32-heads-4-kv": {"num_attention_heads": 32, "num_key_value_heads": 4, "hidden_size": 256},
    "own-head-size": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24},
}


@pytest.mark.parametrize("shape", LLAMA_SHAPES)
def test_llama_q_and_k_rows_come_back_in_hugging_face_order(tmp_path: Path, shape: str) -> None:
    model = tiny_model("llama", **LLAMA_SHAPES[shape])
    path = save_gguf(tmp_path / "model.gguf", model, "llama")
    assert_same_tensors(open_checkpoint(path), weights(model))


def test_llama_q_and_k_biases_are_put_back_in_order_too(tmp_path: Path) -> None:
    model = tiny_model("llama", num_attention_heads=8, attention_bias=True, mlp_bias=True)
    checkpoint = open_checkpoint(save_gguf(tmp_path / "model.gguf", model, "llama"))
    config = checkpoint.config
    assert (config.attention_bias, config.attention_out_bias, config.mlp_bias) == (True, True, True)
    assert_same_tensors(checkpoint, weights(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_back_the_original_tensors_and_configuration(tmp_path: Path, family: str) -> None:
    model = save_hf(tmp_path / "hf", family)
    from_gguf = open_checkpoint(save_gguf(tmp_path / "model.gguf", model, family))
    from_hf = open_checkpoint(tmp_path / "hf")
    assert_same_tensors(from_gguf, weights(model))
    assert_same_tensors(from_hf, weights(model))
    assert from_gguf.config == rounded(from_hf.config)
    assert from_gguf.num_bytes == from_hf.num_bytes == sum(4 * value.numel() for value in weights(model).values())


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3"])
def test_q_and_k_of_other_families_are_never_reordered(tmp_path: Path, family: str) -> None:
    model = tiny_model(family, num_attention_heads=8, num_key_value_heads=2)
    assert_same_tensors(open_checkpoint(save_gguf(tmp_path / "model.gguf", model, family)), weights(model))


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16"])
def test_slices_of_a_reordered_quantised_matrix_match_the_dequantised_original(tmp_path: Path, quant: str) -> None:
    model = tiny_model("llama", num_attention_heads=8, num_key_value_heads=2)
    checkpoint = open_checkpoint(save_gguf(tmp_path / "model.gguf", model, "llama", quant))
    kind = gguf.GGMLQuantizationType[quant]
    for name in ("q_proj", "k_proj", "v_proj"):
        original = model.state_dict()[f"model.layers.1.self_attn.{name}.weight"]
        # Quantisation works along rows, so it commutes with their order.
        stored = gguf.quants.quantize(original.numpy(), kind)
        expected = torch.from_numpy(np.array(gguf.quants.dequantize(stored, kind)))
        tensor = checkpoint.tensor(f"model.layers.1.self_attn.{name}.weight")
        assert tensor.format == quant
        assert torch.equal(tensor.dequantize(), expected)
        assert torch.equal(tensor.rows(5, 12).columns(32, 64).dequantize(), expected[5:12, 32:64])
        groups = tensor.rows(5, 12).affine_groups()
        if groups is not None:
            assert torch.equal(affine_values(groups), expected[5:12])


LLAMA3 = {
    "rope_theta": 500_000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_rope_frequency_factors_become_part_of_the_configuration(tmp_path: Path) -> None:
    model = tiny_model("llama", rope_parameters=LLAMA3, head_dim=64, max_position_embeddings=32_768)
    checkpoint = open_checkpoint(save_gguf(tmp_path / "model.gguf", model, "llama"))
    scaling = checkpoint.config.rope_scaling
    assert scaling.kind == "none"
    assert scaling.factors is not None
    assert len(scaling.factors) == 32
    base = 1.0 / (500_000.0 ** (torch.arange(0, 64, 2).float() / 64))
    torch.testing.assert_close(base / torch.tensor(scaling.factors), model.model.rotary_emb.inv_freq)
    assert "rope_freqs.weight" not in checkpoint


def test_rope_frequency_factors_of_the_wrong_number_are_refused(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", extra={"rope_freqs.weight": torch.ones(5)})
    with pytest.raises(LoadError, match=r"rope_freqs.*5 values, not 8"):
        open_checkpoint(path)


def test_linear_and_yarn_scaling_are_read_from_metadata(tmp_path: Path) -> None:
    linear = tiny_model("llama", rope_parameters={"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0})
    checkpoint = open_checkpoint(save_gguf(tmp_path / "linear.gguf", linear, "llama"))
    assert checkpoint.config.rope_scaling == RopeScaling(kind="linear", factor=4.0)
    parameters = {
        "rope_theta": 1e6,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    yarn = tiny_model("qwen2", rope_parameters=parameters)
    checkpoint = open_checkpoint(save_gguf(tmp_path / "yarn.gguf", yarn, "qwen2"))
    expected = RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=128)
    assert checkpoint.config.rope_scaling == expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "longrope"}, r"rope scaling 'longrope'.*supported are none, linear, yarn"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": -1.0}, "rope.scaling.factor"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.logit_scale": 0.5}, "logit_scale"),
        ({"llama.attention.value_length": 8}, "value_length"),
    ],
)
def test_metadata_that_would_change_the_output_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", metadata=metadata)
    with pytest.raises(LoadError, match=message):
        open_checkpoint(path)


def test_an_unknown_architecture_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"'mamba' is not supported; supported are llama, qwen2, qwen3, gemma3"):
        open_checkpoint(tmp_path / "m.gguf")


def test_gemma_norms_come_back_without_the_stored_offset(tmp_path: Path) -> None:
    model = tiny_model("gemma3")
    path = save_gguf(tmp_path / "model.gguf", model, "gemma3")
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    norm = open_checkpoint(path).tensor("model.layers.0.self_attn.q_norm.weight").dequantize()
    assert torch.equal(norm + 1, torch.from_numpy(np.array(stored["blk.0.attn_q_norm.weight"])))


@pytest.mark.parametrize(
    ("pattern", "slides"),
    [
        (None, [1, 1, 1, 1, 1, 0]),
        (2, [1, 0, 1, 0, 1, 0]),
        ([True, False, False, True, False, True], [1, 0, 0, 1, 0, 1]),
    ],
    ids=["default", "number", "booleans"],
)
def test_gemma_layers_slide_by_the_files_pattern_or_five_to_one(
    tmp_path: Path, pattern: Any, slides: list[int]
) -> None:
    metadata = {} if pattern is None else {"gemma3.attention.sliding_window_pattern": pattern}
    if pattern is not None:
        metadata["gemma3.rope.freq_base_swa"] = 5000.0
    model = tiny_model("gemma3", final_logit_softcapping=30.0)
    config = open_checkpoint(save_gguf(tmp_path / "m.gguf", model, "gemma3", metadata=metadata)).config
    assert [kind == "sliding_attention" for kind in config.layer_types] == [bool(item) for item in slides]
    assert config.sliding_window == 16
    assert config.rope_local_theta == (10_000.0 if pattern is None else 5000.0)
    assert config.query_pre_attn_scalar == 32.0
    assert config.final_logit_softcapping == 30.0


def test_gemma_27b_scales_queries_by_hidden_size_per_head(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 62, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    model = tiny_model("gemma3", **shape, num_key_value_heads=1, head_dim=8)
    config = open_checkpoint(save_gguf(tmp_path / "m.gguf", model, "gemma3")).config
    assert config.query_pre_attn_scalar == 16.0


def test_tied_without_a_head_uses_the_embedding(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    checkpoint = open_checkpoint(save_gguf(tmp_path / "m.gguf", model, "llama"))
    assert checkpoint.config.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint


def test_tied_with_a_duplicated_head_has_the_embedding_as_its_head(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    embedding = model.state_dict()["model.embed_tokens.weight"]
    checkpoint = open_checkpoint(save_gguf(tmp_path / "m.gguf", model, "llama", extra={"output.weight": embedding}))
    assert not checkpoint.config.tie_word_embeddings
    assert torch.equal(checkpoint.tensor("lm_head.weight").dequantize(), embedding)


def test_untied_uses_its_own_head(tmp_path: Path) -> None:
    model = tiny_model("llama")
    checkpoint = open_checkpoint(save_gguf(tmp_path / "m.gguf", model, "llama"))
    assert not checkpoint.config.tie_word_embeddings
    head = checkpoint.tensor("lm_head.weight").dequantize()
    assert torch.equal(head, model.state_dict()["lm_head.weight"])
    assert not torch.equal(head, checkpoint.tensor("model.embed_tokens.weight").dequantize())


def test_a_quantised_embedding_is_decoded_to_the_same_values_for_lookup_and_logits(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q6_K
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (VOCAB_SIZE, 210), dtype=np.uint8)
    blocks[:, 208:] = np.full((VOCAB_SIZE, 1), 0.001, np.float16).view(np.uint8)
    model = tiny_model("llama", hidden_size=256, tie_word_embeddings=True)
    path = save_gguf(tmp_path / "m.gguf", model, "llama", raw={"token_embd.weight": (blocks, kind)})
    embedding = open_checkpoint(path).tensor("model.embed_tokens.weight")
    assert embedding.format == "Q6_K"
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    assert torch.equal(embedding.dequantize(), expected)
    assert torch.equal(embedding.rows(100, 103).dequantize(), expected[100:103])


def rewritten(path: Path, target: Path, *, without: str = "", shape: dict[str, tuple[int, ...]] | None = None) -> Path:
    """A copy of a float32 file with a tensor left out or reshaped."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("llama."):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if tensor.name != without:
            data = np.array(tensor.data)
            writer.add_tensor(tensor.name, data.reshape((shape or {}).get(tensor.name, data.shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_a_missing_tensor_is_refused_at_opening_by_name(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama")
    with pytest.raises(LoadError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        open_checkpoint(rewritten(path, tmp_path / "less.gguf", without="blk.1.ffn_up.weight"))
    with pytest.raises(LoadError, match=r"token_embd\.weight.*missing"):
        open_checkpoint(rewritten(path, tmp_path / "none.gguf", without="token_embd.weight"))


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama")
    turned = rewritten(path, tmp_path / "turned.gguf", shape={"blk.0.ffn_up.weight": (64, 96)})
    with pytest.raises(LoadError, match=r"up_proj\.weight' has shape \[64, 96\].*\[96, 64\]"):
        open_checkpoint(turned)


def test_a_tensor_that_the_family_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": torch.ones(4)}
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", extra=extra)
    with pytest.raises(LoadError, match=r"'blk\.0\.attn_sinks\.weight' is not part of a llama model"):
        open_checkpoint(path)


def test_a_quantised_norm_is_refused(tmp_path: Path) -> None:
    raw = {"output_norm.weight": (np.zeros(68, np.uint8), gguf.GGMLQuantizationType.Q8_0)}
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", raw=raw)
    with pytest.raises(LoadError, match=r"'output_norm\.weight' is a vector in Q8_0"):
        open_checkpoint(path)


def test_a_layer_count_that_the_file_cannot_hold_is_refused_before_it_sizes_anything(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama")
    content = path.read_bytes()
    key = b"llama.block_count"
    at = content.index(key) + len(key) + 4
    path.write_bytes(content[:at] + (2**32 - 1).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(LoadError, match=r"block_count' is 4294967295, but the file has"):
        open_checkpoint(path)


def test_a_split_set_opens_from_any_of_its_files(tmp_path: Path) -> None:
    model = tiny_model("llama")
    save_gguf(tmp_path / "m.gguf", model, "llama", split_max_tensors=9)
    shards = sorted(tmp_path.glob("m-*.gguf"))
    assert len(shards) > 2
    for path in (*shards, tmp_path):
        assert_same_tensors(open_checkpoint(path), weights(model))
    shards[1].rename(tmp_path / "elsewhere.bin")
    with pytest.raises(LoadError, match=rf"{shards[1].name}: missing"):
        open_checkpoint(shards[0])


def test_a_renamed_file_of_a_split_set_is_refused(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", split_max_tensors=9)
    renamed = path.rename(tmp_path / "alone.gguf")
    with pytest.raises(LoadError, match=r"is one of \d files by its metadata"):
        open_checkpoint(renamed)


def test_a_directory_with_several_gguf_models_asks_for_one(tmp_path: Path) -> None:
    model = tiny_model("llama", num_hidden_layers=1)
    save_gguf(tmp_path / "a.gguf", model, "llama")
    assert open_checkpoint(tmp_path).path == tmp_path / "a.gguf"
    save_gguf(tmp_path / "b.gguf", model, "llama")
    with pytest.raises(LoadError, match=r"2 GGUF models \(a\.gguf, b\.gguf\)"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["absent", "absent.gguf"])
def test_a_path_that_does_not_exist_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LoadError, match="no such file"):
        open_checkpoint(tmp_path / name)


def test_asking_for_a_tensor_that_is_not_there_names_file_and_tensor(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama", num_hidden_layers=1), "llama")
    with pytest.raises(LoadError, match=r"m\.gguf: has no tensor 'nothing'"):
        open_checkpoint(path).tensor("nothing")


def test_both_formats_bring_the_same_tokenizer(tmp_path: Path) -> None:
    model = save_hf(tmp_path / "hf", "qwen2")
    from_gguf = open_checkpoint(save_gguf(tmp_path / "m.gguf", model, "qwen2")).tokenizer()
    from_hf = open_checkpoint(tmp_path / "hf").tokenizer()
    for text in ("The harbour was quiet.", "naïve café 12345\n\tx = (a->b);", "emoji 🙂 and 東京"):
        ids = from_hf.encode(text)
        assert from_gguf.encode(text) == ids
        assert from_gguf.decode(ids) == from_hf.decode(ids) == text
    assert from_gguf.chat_template == from_hf.chat_template
    assert from_gguf.eos_token_ids >= {2} and from_hf.eos_token_ids >= {2}


def test_an_unknown_pre_tokenizer_is_refused_unless_forced(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama", num_hidden_layers=1), "llama")
    path.write_bytes(path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0gpt-9"))
    checkpoint = open_checkpoint(path)
    with pytest.raises(LoadError, match="gpt-9"):
        checkpoint.tokenizer()
    assert checkpoint.tokenizer(force=True).decode([40]) != ""
