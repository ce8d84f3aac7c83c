"""What cannot be is one line of ours on standard error, with value, limit and remedy, and exit status 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf as gguf_format
import pytest
import torch

from octavo.engine import loaded_model
from tests.cli.conftest import Run
from tests.tiny_models import save_gguf, tiny_model


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--temperature", "nan"), ["temperature", "nan"]),
        (("--temperature", "inf"), ["temperature is inf", "at most 100"]),
        (("--temperature", "-1"), ["temperature is -1.0", "at least 0"]),
        (("--temperature", "hot"), ["--temperature", "'hot'"]),
        (("--top-k", "-1"), ["top_k is -1", "at least 0"]),
        (("--top-k", "1.5"), ["--top-k", "'1.5'"]),
        (("--top-p", "0"), ["top_p is 0.0", "above 0"]),
        (("--top-p", "1.1"), ["top_p is 1.1", "at most 1"]),
        (("--top-p", "nan"), ["top_p", "nan"]),
        (("--min-p", "-0.1"), ["min_p is -0.1", "at least 0"]),
        (("--min-p", "2"), ["min_p is 2.0", "at most 1"]),
        (("-n", "0"), ["max_tokens is 0", "at least 1"]),
        (("-n", "-5"), ["max_tokens is -5"]),
        (("-n", "many"), ["--max-tokens", "'many'"]),
        (("--seed", "99999999999999999999999"), ["seed"]),
        (("--seed", "x"), ["--seed", "'x'"]),
        (("--stop", ""), ["stop", "''"]),
        (sum((("--stop", str(i)) for i in range(17)), ()), ["17", "at most 16"]),
        (("--block-size", "17"), ["block size is 17", "16, 32, 64"]),
        (("--block-size", "0"), ["block size is 0"]),
        (("--max-context", "100000"), ["max context is 100000", "1024"]),
        (("--max-context", "0"), ["max context is 0", "at least 1"]),
        (("--storage", "heap"), ["storage is 'heap'", "auto, dense, paged"]),
        (("--dtype", "float8"), ["dtype is 'float8'", "auto, float32, bfloat16, float16"]),
        (("--weights", "int3"), ["weights is 'int3'", "int8, int4"]),
        (("--kv-dtype", "f8"), ["'f8'", "f32, f16, bf16"]),
        (("--kv-dtype", "q=f16"), ["'q=f16'", "k=NAME,v=NAME"]),
        (("--device", "tpu"), ["device is 'tpu'", "auto, cpu, cuda"]),
        (("--threads", "0"), ["threads is 0", "at least 1"]),
        (("--threads", "1000000"), ["threads is 1000000", "at most"]),
        (("--weights", "int4", "--dtype", "float32"), ["int4", "float32"]),
        (("--chat", "--parse-special"), ["--parse-special", "--raw"]),
        (("--bogus",), ["--bogus", "octavo generate --help"]),
        (("positional",), ["positional"]),
        (
            ("-p", "again", "--max-context", "8", "--raw", "-p", "one two three four five"),
            ["context holds 8", "at most 7"],
        ),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_an_option_that_cannot_be(octavo: Run, model: Path, arguments, fragments):
    done = octavo("generate", "-m", model, "-p", "x", *arguments)
    assert done.status == 2
    for fragment in fragments:
        assert fragment in done.error


@pytest.mark.parametrize(
    ("variable", "value", "fragments"),
    [
        ("OCTAVO_TEMPERATURE", "nan", ["nan"]),
        ("OCTAVO_TEMPERATURE", "warm", ["OCTAVO_TEMPERATURE", "'warm'"]),
        ("OCTAVO_MAX_TOKENS", "many", ["OCTAVO_MAX_TOKENS", "'many'"]),
        ("OCTAVO_THREADS", "0", ["threads is 0"]),
        ("OCTAVO_BLOCK_SIZE", "17", ["block size is 17"]),
        ("OCTAVO_STORAGE", "heap", ["'heap'"]),
        ("OCTAVO_KV_BUDGET", "4 gigs", ["--kv-budget is '4 gigs'", "GiB"]),
        ("OCTAVO_IGNORE_EOS", "maybe", ["OCTAVO_IGNORE_EOS", "'maybe'"]),
        ("OCTAVO_PAGED_ATTENTION_NATIVE", "2", ["OCTAVO_PAGED_ATTENTION_NATIVE is '2'", "0 or 1"]),
        ("OCTAVO_SDPA_DETERMINISTIC", "yes", ["OCTAVO_SDPA_DETERMINISTIC is 'yes'", "0 or 1"]),
    ],
)
def test_a_variable_that_cannot_be(octavo, model, variable, value, fragments):
    done = octavo("generate", "-m", model, "-p", "x", **{variable: value})
    assert done.status == 2
    for fragment in fragments:
        assert fragment in done.error


def test_a_prompt_longer_than_the_context_is_refused_and_the_longest_is_answered(octavo, model):
    done = octavo("generate", "-m", model, "--raw", stdin=b"~" * 1024)
    assert done.status == 2
    assert "1024 tokens" in done.error and "at most 1023" in done.error
    assert octavo("generate", "-m", model, "--raw", stdin=b"~" * 1023).status == 0


def test_a_prompt_longer_than_the_pool_is_refused_with_what_fits(octavo, model):
    """K/V memory for eight blocks."""
    ledger = loaded_model.plan_model(model, loaded_model.EngineConfig(max_num_seqs=1, threads=1)).ledger
    budget = 8 * 16 * ledger.groups[0].bytes_per_token
    done = octavo("generate", "-m", model, "--raw", "--kv-budget", budget, stdin=b"~" * 200)
    assert done.status == 2
    assert "200 tokens" in done.error and "holds 128" in done.error and "at most 127" in done.error
    assert octavo("generate", "-m", model, "--raw", "--kv-budget", budget, stdin=b"~" * 127).status == 0


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(octavo, model, monkeypatch):
    monkeypatch.setattr(loaded_model, "available_memory", lambda device: 3 << 20)
    done = octavo("generate", "-m", model, "-p", "x")
    assert done.status == 2
    assert "needs" in done.error and "3.0 MiB are free" in done.error


# -- files ------------------------------------------------------------------------------------------------------


def absent(tmp_path: Path, gguf: Path) -> Path:
    return tmp_path / "absent.gguf"


def wrong_magic(tmp_path: Path, gguf: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"NOPE" + gguf.read_bytes()[4:])
    return path


def no_model(tmp_path: Path, gguf: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("not a model\n")
    return path


def empty_file(tmp_path: Path, gguf: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    return path


def truncated(tmp_path: Path, gguf: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf.read_bytes()[:-1000])
    return path


def empty_directory(tmp_path: Path, gguf: Path) -> Path:
    return tmp_path


def unknown_architecture(tmp_path: Path, gguf: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf_format.GGUFWriter(path, "warp-drive")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", torch.zeros(4, 4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def unknown_quant_type(tmp_path: Path, gguf: Path) -> Path:
    """An encoding number that no version of the format has."""
    path = save_gguf(tmp_path / "model.gguf", tiny_model("llama", num_hidden_layers=1), "llama")
    data = bytearray(path.read_bytes())
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8
    assert data[at : at + 4] == bytes(4)  # F32
    data[at] = 231
    path.write_bytes(data)
    return path


def broken_config(tmp_path: Path, gguf: Path) -> Path:
    path = tmp_path / "hf"
    shutil.copytree(gguf.parent / "hf", path)
    (path / "config.json").write_text("{")
    return path


@pytest.mark.parametrize(
    ("make", "fragments"),
    [
        (absent, ["absent.gguf"]),
        (wrong_magic, ["model.gguf", "GGUF"]),
        (no_model, ["notes.txt"]),
        (empty_file, ["model.gguf"]),
        (truncated, ["model.gguf"]),
        (empty_directory, ["config.json"]),
        (unknown_architecture, ["warp-drive", "llama"]),
        (unknown_quant_type, ["231"]),
        (broken_config, ["config.json"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
@pytest.mark.parametrize("name", ["generate", "chat", "inspect", "parity"])
def test_a_model_that_cannot_be(octavo, gguf, tmp_path, name, make, fragments):
    path = make(tmp_path, gguf)
    model = (path,) if name == "inspect" else ("-m", path)
    prompt = ("-p", "x") if name == "generate" else ()
    done = octavo(name, *model, *prompt)
    assert done.status == 2
    for fragment in fragments:
        assert fragment in done.error


def test_an_alias_that_nobody_knows_is_refused_with_those_that_are(octavo):
    done = octavo("generate", "-m", "smolm2", "-p", "x")
    assert done.status == 2
    assert "'smolm2'" in done.error and "smollm2" in done.error


def test_a_path_with_control_characters_cannot_break_the_line(octavo):
    done = octavo("generate", "-m", "./no\nsuch\x1b[31m.gguf", "-p", "x")
    assert done.status == 2
    assert "\x1b" not in done.error
