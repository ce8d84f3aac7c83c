"""Hugging Face directories: sharding, damage, tying, and what is refused (R042, R044)."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_hf

from octavo.errors import LoadError
from octavo.models.loaders import open_checkpoint

INDEX = "model.safetensors.index.json"


def edit_json(path: Path, **changes: Any) -> None:
    """Sets keys of a JSON file; a value of Ellipsis removes the key."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def rewrite_tensors(directory: Path, change: Any) -> None:
    tensors = load_file(directory / "model.safetensors")
    save_file(change(tensors), directory / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def llama_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "llama"
    save_hf(path, "llama", num_hidden_layers=2)
    return path


@pytest.fixture
def llama(llama_source: Path, tmp_path: Path) -> Path:
    """A fresh copy of a small llama directory, to damage at will."""
    return Path(shutil.copytree(llama_source, tmp_path / "llama"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_float_dtype_is_read_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    model = save_hf(tmp_path, "qwen3", dtype=dtype)
    checkpoint = open_checkpoint(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(checkpoint.tensor(name).dequantize(), value.float())
        assert torch.equal(checkpoint.tensor(name).dequantize(dtype), value)


def test_a_sharded_directory_holds_the_same_tensors_as_a_single_file(tmp_path: Path) -> None:
    model = save_hf(tmp_path, "llama", max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.names()) == set(model.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(checkpoint.tensor(name).dequantize(), value)
    assert torch.equal(
        checkpoint.tensor("model.layers.0.mlp.up_proj.weight").rows(3, 9).columns(5, 11).dequantize(),
        model.state_dict()["model.layers.0.mlp.up_proj.weight"][3:9, 5:11],
    )


def test_a_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama", max_shard_size="100KB")
    shard = min(tmp_path.glob("model-*.safetensors"))
    shard.unlink()
    with pytest.raises(LoadError, match=rf"{shard.name}: missing \(1 of"):
        open_checkpoint(tmp_path)


def test_shards_without_their_index_are_refused(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama", max_shard_size="100KB")
    (tmp_path / INDEX).unlink()
    with pytest.raises(LoadError, match=f"no {INDEX}"):
        open_checkpoint(tmp_path)


def test_a_tensor_that_the_index_promises_but_no_shard_has_is_refused(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama", max_shard_size="100KB")
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["model.ghost.weight"] = min(index["weight_map"].values())
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(LoadError, match=r"has no tensor 'model\.ghost\.weight'"):
        open_checkpoint(tmp_path)


def test_an_index_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama", max_shard_size="100KB")
    edit_json(tmp_path / INDEX, weight_map={"a": "../other.safetensors"})
    with pytest.raises(LoadError, match=r"\.\./other\.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.005, 0.5, 0.99])
def test_a_truncated_file_is_refused_with_its_size(llama: Path, share: float) -> None:
    path = llama / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(LoadError, match=r"model\.safetensors: .*\d+ bytes"):
        open_checkpoint(llama)


@pytest.mark.parametrize("length", [2**32, 2**63, 2**64 - 1])
def test_an_absurd_header_length_is_refused(llama: Path, length: int) -> None:
    (llama / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(LoadError, match=f"needs {length} bytes, but the file has 10 bytes"):
        open_checkpoint(llama)


BROKEN_ENTRIES = {
    "no-json": (b"{", "not JSON"),
    "no-object": (b"[]", "not a JSON object"),
    "repeated": (b'{"a":{},"a":{}}', "occurs twice"),
    "no-shape": (b'{"a":{"dtype":"F32","data_offsets":[0,4]}}', "no valid shape"),
    "negative-shape": (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', "no valid shape"),
    "unknown-dtype": (b'{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}}', "unknown dtype 'F4'"),
    "backward": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', "data_offsets"),
    "wrong-size": (
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        "needs 8 bytes, but the header gives it 4",
    ),
    "past-the-end": (b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', "only 8 bytes of data"),
    "overlapping": (
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        "overlap",
    ),
}


@pytest.mark.parametrize("kind", BROKEN_ENTRIES)
def test_a_broken_header_is_refused_with_what_is_wrong(llama: Path, kind: str) -> None:
    header, message = BROKEN_ENTRIES[kind]
    (llama / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(LoadError, match=message):
        open_checkpoint(llama)


def test_a_missing_tensor_and_a_wrong_shape_are_refused_by_name(llama: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    rewrite_tensors(llama, lambda tensors: tensors | {name: tensors[name][:16]})
    with pytest.raises(LoadError, match=r"k_proj\.weight' has shape \[16, 64\].*\[32, 64\]"):
        open_checkpoint(llama)
    rewrite_tensors(llama, lambda tensors: {key: value for key, value in tensors.items() if key != name})
    with pytest.raises(LoadError, match=r"k_proj\.weight' is missing"):
        open_checkpoint(llama)


def test_rotary_buffers_are_ignored_but_other_extra_tensors_are_refused(llama: Path) -> None:
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    rewrite_tensors(llama, lambda tensors: tensors | buffer)
    assert not set(buffer) & set(open_checkpoint(llama).names())
    rewrite_tensors(llama, lambda tensors: tensors | {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)})
    with pytest.raises(LoadError, match=r"q_proj\.bias' is not part of a llama model"):
        open_checkpoint(llama)


def test_weights_of_an_integer_or_8_bit_float_dtype_are_refused_by_dtype(llama: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite_tensors(llama, lambda tensors: tensors | {name: tensors[name].to(torch.float8_e4m3fn)})
    with pytest.raises(LoadError, match=r"up_proj\.weight' has dtype F8_E4M3"):
        open_checkpoint(llama)


def test_a_quantisation_method_is_refused_by_name(llama: Path) -> None:
    edit_json(llama / "config.json", quantization_config={"quant_method": "fp8"})
    with pytest.raises(LoadError, match="quantisation 'fp8' is not supported"):
        open_checkpoint(llama)


def test_pickled_weights_are_refused(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(LoadError, match=r"no \.safetensors file"):
        open_checkpoint(llama)


def test_a_directory_that_is_no_model_and_a_single_file_of_one_are_refused(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LoadError, match="no model directory"):
        open_checkpoint(tmp_path / "empty")
    with pytest.raises(LoadError, match="give the directory"):
        open_checkpoint(llama / "model.safetensors")


@pytest.mark.parametrize("method", ["is_dir", "exists", "iterdir"])
def test_a_directory_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", "something below")

    monkeypatch.setattr(Path, method, refuse)
    path = tmp_path if method == "iterdir" else tmp_path / "model"
    with pytest.raises(LoadError, match=rf"{path.name}: cannot be read \(Permission denied\)"):
        open_checkpoint(path)


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": 7}'])
def test_a_broken_configuration_is_refused(llama: Path, content: str) -> None:
    (llama / "config.json").write_text(content)
    with pytest.raises(LoadError, match=r"config\.json"):
        open_checkpoint(llama)


def test_tied_with_and_without_a_duplicated_head_uses_the_embedding(tmp_path: Path) -> None:
    model = save_hf(tmp_path, "llama", tie_word_embeddings=True)
    without = open_checkpoint(tmp_path)
    embedding = model.state_dict()["model.embed_tokens.weight"]
    rewrite_tensors(tmp_path, lambda tensors: tensors | {"lm_head.weight": embedding.clone()})
    for checkpoint in (without, open_checkpoint(tmp_path)):
        assert checkpoint.config.tie_word_embeddings
        assert "lm_head.weight" not in checkpoint


def test_a_stored_head_that_differs_from_the_embedding_is_used_though_called_tied(tmp_path: Path) -> None:
    model = save_hf(tmp_path, "llama", tie_word_embeddings=True)
    head = model.state_dict()["model.embed_tokens.weight"].clone()
    head[-1, -1] += 1
    rewrite_tensors(tmp_path, lambda tensors: tensors | {"lm_head.weight": head})
    checkpoint = open_checkpoint(tmp_path)
    assert not checkpoint.config.tie_word_embeddings
    assert torch.equal(checkpoint.tensor("lm_head.weight").dequantize(), head)


def test_untied_uses_its_own_head_and_is_refused_without_one(llama: Path) -> None:
    checkpoint = open_checkpoint(llama)
    head = load_file(llama / "model.safetensors")["lm_head.weight"]
    assert not checkpoint.config.tie_word_embeddings
    assert torch.equal(checkpoint.tensor("lm_head.weight").dequantize(), head)
    rewrite_tensors(llama, lambda tensors: {key: value for key, value in tensors.items() if key != "lm_head.weight"})
    edit_json(llama / "config.json", tie_word_embeddings=False)
    with pytest.raises(LoadError, match=r"tie_word_embeddings' is false, but tensor 'lm_head\.weight' is missing"):
        open_checkpoint(llama)
    edit_json(llama / "config.json", tie_word_embeddings=...)
    assert open_checkpoint(llama).config.tie_word_embeddings


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_multimodal_gemma_is_read_and_the_rest_ignored_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    model = save_hf(tmp_path, "gemma3")
    text_config = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "gemma3", "text_config": text_config, "eos_token_id": [1, 106]}
    (tmp_path / "config.json").write_text(json.dumps(outer))

    def wrap(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {prefix + name.removeprefix("model."): value for name, value in tensors.items()}
        return renamed | {"vision_tower.patch.weight": torch.ones(3), "multi_modal_projector.w": torch.ones(2)}

    rewrite_tensors(tmp_path, wrap)
    with caplog.at_level(logging.INFO):
        checkpoint = open_checkpoint(tmp_path)
    assert "2 tensors of the vision part are ignored" in caplog.text
    assert checkpoint.config.model_type == "gemma3_text"
    assert checkpoint.config.eos_token_ids == (2, 1, 106)
    for name in checkpoint.names():
        assert torch.equal(checkpoint.tensor(name).dequantize(), model.state_dict()[name])
