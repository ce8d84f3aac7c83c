"""Files of random weights for measurements: shapes, types and values as they are said to be, and they generate."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from octavo.llm import LLM
from octavo.models.loaders import open_checkpoint
from octavo.sampling_params import SamplingParams
from scripts.random_gguf import SHAPES, Shape, main, weights, write
from tests.tiny_models import add_tokenizer_metadata

TINY = Shape(hidden=256, intermediate=512, layers=4, heads=4, kv_heads=2, context=256)
EMBEDDING = "token_embd.weight"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("random")
    source = directory / "source.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    add_tokenizer_metadata(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    write(directory / "out.gguf", TINY, source, "tiny")
    return directory / "out.gguf"


def test_tensors_have_the_types_of_q4_k_m_and_the_variance_that_products_keep(path):
    tensors = {each.name: each for each in gguf.GGUFReader(path).tensors}
    assert "output.weight" not in tensors
    wide = [tensors[f"blk.{layer}.ffn_down.weight"].tensor_type.name for layer in range(4)]
    assert wide == ["Q4_K", "Q4_K", "Q6_K", "Q6_K"]
    for name, each in tensors.items():
        values = gguf.quants.dequantize(each.data, each.tensor_type).reshape(-1)
        assert np.isfinite(values).all()
        if each.tensor_type.name == "F32":
            continue
        std = int(each.shape[0]) ** -0.5
        assert abs(values.std() / std - 1) < 0.02, name
        assert abs(values.mean()) < 0.02 * std, name


def test_what_is_loaded_is_what_was_written(path):
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (256, 512, 4)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 64)
    stored = next(each for each in gguf.GGUFReader(path).tensors if each.name == EMBEDDING)
    expected = gguf.quants.dequantize(stored.data, stored.tensor_type)
    assert checkpoint.config.vocab_size == len(expected)
    found = checkpoint.tensor("model.embed_tokens.weight").dequantize().numpy()
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_it_generates(path):
    llm = LLM(str(path), max_num_seqs=1)
    (answer,) = llm.generate(["one two"], SamplingParams(max_tokens=5, ignore_eos=True))
    assert len(answer.outputs[0].token_ids) == 5


def test_the_file_of_one_and_a_half_billion_weights_is_of_that_size():
    found = list(weights(SHAPES["qwen2.5-coder-1.5b"], 151936))
    assert 1.54e9 < sum(max(1, each.rows) * each.columns for each in found) < 1.55e9
    assert len(found) == 2 + 12 * 28
    assert sum(each.kind.name == "Q6_K" for each in found) == 1 + 2 * 14


@pytest.mark.parametrize(
    ("source", "said"),
    [("absent", "No such file"), ("text", "magic"), ("nothing", "no vocabulary"), ("path", "directory")],
)
def test_a_file_that_cannot_be_used_is_named_in_a_line(source, said, path, tmp_path, monkeypatch, capsys):
    (tmp_path / "text").write_bytes(b"no model file" * 10)
    writer = gguf.GGUFWriter(tmp_path / "nothing", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer, out = (path, tmp_path) if source == "path" else (tmp_path / source, tmp_path / "out.gguf")
    monkeypatch.setattr("sys.argv", ["random_gguf", next(iter(SHAPES)), str(tokenizer), str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    last = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert said in last and str(tokenizer) in last and str(out) in last
