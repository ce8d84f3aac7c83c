"""`octavo generate --save-cache` and `--load-cache`: an answer goes on from a file as if it had never stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from octavo.storage.snapshot import KVSnapshot
from tests.cli.conftest import Run
from tests.conftest import weights_path
from tests.tiny_models import save_hf

RAW = ("--raw", "--ignore-eos", "-n", "12", "--dtype", "bfloat16")  # `auto` is float32 on some processors
BEGIN, WHOLE = "The harbour was quiet", "The harbour was quiet when the first boats returned"


@pytest.fixture
def answer(octavo: Run, model: Path):
    """`answer("-p", ...)`: the JSON object that a raw `generate` prints."""

    def run(*arguments, path=model):
        done = octavo("generate", "-m", path, "--json", *RAW, *arguments)
        assert done.status == 0, done.err
        return json.loads(done.out)

    return run


@pytest.fixture
def saved(answer, tmp_path) -> Path:
    """The K/V of `BEGIN`, and no token more."""
    answer("-p", BEGIN, "-n", "1", "--save-cache", tmp_path / "begin.kv")
    return tmp_path / "begin.kv"


def test_the_saved_tokens_are_the_prompt_and_the_answer_but_its_last_token(answer, tmp_path):
    found = answer("-p", BEGIN, "--save-cache", tmp_path / "a.kv")
    snapshot = KVSnapshot.load(tmp_path / "a.kv")
    assert list(snapshot.token_ids) == found["prompt_token_ids"] + found["token_ids"][:-1]
    assert os.listdir(tmp_path) == ["a.kv"]


@pytest.mark.parametrize("settings", [(), ("--storage", "paged", "--block-size", "64")], ids=["dense", "paged"])
def test_a_longer_prompt_goes_on_from_the_file_with_the_same_answer(answer, saved, settings):
    cold, warm = answer("-p", WHOLE), answer("-p", WHOLE, "--load-cache", saved, *settings)
    assert (warm["token_ids"], warm["text"]) == (cold["token_ids"], cold["text"])
    prompt, cached = len(cold["prompt_token_ids"]), len(KVSnapshot.load(saved).token_ids)
    assert cold["usage"] == {"prompt_tokens": prompt, "completion_tokens": 12, "cached_tokens": 0}
    assert warm["usage"] == {"prompt_tokens": prompt, "completion_tokens": 12, "cached_tokens": cached}
    assert list(warm) == list(cold)


def test_a_file_can_be_loaded_and_saved_longer_in_one_run(answer, saved):
    answer("-p", WHOLE, "--load-cache", saved, "--save-cache", saved)
    cold = answer("-p", WHOLE)
    assert list(KVSnapshot.load(saved).token_ids) == cold["prompt_token_ids"] + cold["token_ids"][:-1]


def test_with_a_chat_template_the_tokens_of_the_template_count(octavo, answer, model, saved):
    done = octavo("generate", "-m", model, "--chat", "--dtype", "bfloat16", "-p", WHOLE, "--load-cache", saved)
    assert done.status == 2
    assert "at position 0 and the prompt has 1; the prompt must begin with all" in done.error


def test_a_prompt_that_differs_is_refused_with_the_position(octavo, model, saved, loads_nothing):
    done = octavo("generate", "-m", model, *RAW, "-p", "The harbour was loud", "--load-cache", saved)
    assert done.status == 2
    assert "the K/V snapshot has token " in done.error and " at position " in done.error


def test_the_same_prompt_again_is_refused_as_it_does_not_go_on(octavo, model, saved, loads_nothing):
    done = octavo("generate", "-m", model, *RAW, "-p", BEGIN, "--load-cache", saved)
    assert done.status == 2
    assert "the prompt must go on where the snapshot ends" in done.error


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "other", "absent"])
def test_a_file_that_is_no_intact_cache_is_refused_by_name_before_the_model_is_loaded(octavo, saved, damage):
    data = bytearray(saved.read_bytes())
    if damage == "flip":
        data[-100] ^= 1
    elif damage == "truncate":
        del data[-100:]
    elif damage == "empty":
        data.clear()
    elif damage == "other":
        data[:] = b"just some text, and not a short one; it has more than eight and thirty-two bytes"
    saved.write_bytes(data)
    if damage == "absent":
        saved.unlink()
    done = octavo("generate", "-m", "/absent/model.gguf", *RAW, "-p", WHOLE, "--load-cache", saved)
    assert done.status == 2
    assert str(saved) in done.error


def test_the_cache_of_another_model_is_refused_before_it_is_loaded(octavo, saved, tmp_path, loads_nothing):
    save_hf(tmp_path / "llama", "llama", seed=7, num_hidden_layers=2, max_position_embeddings=1024)
    done = octavo("generate", "-m", tmp_path / "llama", *RAW, "-p", WHOLE, "--load-cache", saved)
    assert done.status == 2
    assert "another config or other weights; make the snapshot again with this one" in done.error


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("--kv-dtype", "f32"), "this engine stores k=f32,v=f32; choose kv dtype k=f16,v=f16"),
        (("--dtype", "float32", "--kv-dtype", "f16"), "choose the same dtype and weights"),
    ],
)
def test_other_settings_are_refused_with_what_to_choose(octavo, model, saved, settings, message, loads_nothing):
    done = octavo("generate", "-m", model, *RAW, "-p", WHOLE, "--load-cache", saved, *settings)
    assert done.status == 2
    assert message in done.error


@pytest.mark.parametrize("name", ["absent/a.kv", "."])
def test_a_cache_that_cannot_be_written_is_refused_before_the_model_is_loaded(octavo, tmp_path, name):
    done = octavo("generate", "-m", "/absent/model.gguf", "-p", "x", "--save-cache", tmp_path / name)
    assert done.status == 2
    assert str(tmp_path / name) in done.error


@pytest.mark.weights
@pytest.mark.nightly
def test_a_real_model_goes_on_from_a_file(octavo, tmp_path):
    def run(*arguments):
        settings = ("--raw", "--json", "--ignore-eos", "--max-context", "512")
        done = octavo("generate", "-m", weights_path("smollm2"), *settings, *arguments)
        assert done.status == 0, done.err
        return json.loads(done.out)

    run("-p", "The capital of France", "-n", "1", "--save-cache", tmp_path / "a.kv")
    longer = ("-p", "The capital of France is", "-n", "16")
    warm, cold = run(*longer, "--load-cache", tmp_path / "a.kv", "--storage", "paged"), run(*longer)
    assert warm["token_ids"] == cold["token_ids"]
    assert warm["usage"]["cached_tokens"] == len(cold["prompt_token_ids"]) - 1
