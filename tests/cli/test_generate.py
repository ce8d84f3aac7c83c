"""`octavo generate`: what it prints, and what its options do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.engine.hardware import instruction_set
from octavo.tokenizer import Tokenizer
from tests.cli.conftest import Run
from tests.paged_routes import paged_routes
from tests.tiny_models import EOS_TOKEN_ID

KEYS = [
    "model",
    "prompt_token_ids",
    "token_ids",
    "text",
    "finish_reason",
    "usage",
    "timings",
    "storage",
    "routes",
]
RAW = ("--raw", "--ignore-eos", "-n", "12")


@pytest.fixture
def answer(octavo: Run, model: Path):
    """`answer("--raw", ...)`: the JSON object that `generate` prints."""

    def run(*arguments, path=model, **keywords):
        done = octavo("generate", "-m", path, "--json", *arguments, **keywords)
        assert done.status == 0, done.err
        assert done.out.endswith("}\n") and done.out.count("\n") == 1
        return json.loads(done.out)

    return run


def test_json_is_exactly_one_object_with_exactly_the_documented_keys(answer):
    found = answer("-p", "The harbour", *RAW)
    assert list(found) == KEYS
    prompt_tokens = len(found["prompt_token_ids"])
    assert found["usage"] == {"prompt_tokens": prompt_tokens, "completion_tokens": 12, "cached_tokens": 0}
    assert list(found["timings"]) == ["load_s", "prefill_s", "decode_s", "prefill_tps", "decode_tps"]
    assert all(seconds > 0 for seconds in found["timings"].values())
    assert len(found["token_ids"]) == 12
    assert (found["model"], found["finish_reason"]) == ("llama", "length")
    assert (found["storage"], found["routes"]) == ("paged", paged_routes(1, 11))


def test_the_command_line_and_python_give_the_same_answer_by_the_same_routes(answer, model):  # requirement S3
    llm = LLM(model, threads=1, max_num_seqs=1)
    expected = llm.generate("The harbour", SamplingParams(max_tokens=12, ignore_eos=True))[0]
    found = answer("-p", "The harbour", *RAW)
    assert found["prompt_token_ids"] == list(expected.prompt_token_ids)
    assert found["token_ids"] == list(expected.outputs[0].token_ids)
    assert found["text"] == expected.outputs[0].text
    assert (found["storage"], found["routes"]) == (expected.storage, dict(expected.routes))


def test_text_is_the_answer_and_one_newline_and_what_was_chosen_is_said_once(octavo, answer, model):
    done = octavo("generate", "-m", model, "-p", "The harbour", *RAW)
    assert done.status == 0
    assert done.out == answer("-p", "The harbour", *RAW)["text"] + "\n"
    (line,) = done.err.splitlines()
    assert line.startswith("octavo: llama (llama), ")
    for chosen in ("on cpu (", "), 1 thread,", "weights", "paged storage", "K/V", "context 1024"):
        assert chosen in line


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_that_was_chosen_is_named(octavo, model, dtype):
    done = octavo("generate", "-m", model, "-p", "x", "-n", "1", "--dtype", dtype)
    assert done.status == 0
    assert f"llama (llama), {dtype} on cpu ({instruction_set(torch.device('cpu'))}), " in done.err
    assert done.err.endswith(", not exact\n" if dtype == "float32" else ", exact\n")


def test_exact_results_are_declined_or_refused_where_they_cannot_be(octavo, model):
    declined = octavo("generate", "-m", model, "-p", "x", "-n", "1", "--dtype", "bfloat16", "--no-exact")
    assert declined.err.endswith(", not exact\n")
    refused = octavo("generate", "-m", model, "-p", "x", "-n", "1", "--dtype", "float32", "--exact")
    assert (refused.status, refused.out) == (2, "")
    assert "float32 products on cpu depend on the number of rows; use --dtype bfloat16" in refused.err


def test_an_answer_without_text_is_an_empty_line(octavo, model, tmp_path):
    path = ending_at_once(model, tmp_path, "x")
    assert octavo("generate", "-m", path, "-p", "x", "--raw").out == "\n"


def ending_at_once(model: Path, root: Path, prompt: str, after: int = 0) -> Path:
    """A copy of the model for which the token that follows `prompt` and `after` more is an end token."""
    tokens = LLM(model, threads=1).generate(prompt, SamplingParams(max_tokens=after + 1, ignore_eos=True))
    path = root / "llama"
    shutil.copytree(model, path)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps({**settings, "eos_token_id": tokens[0].outputs[0].token_ids[-1]}))
    return path


def test_ignore_eos_goes_on_after_the_end(answer, model, tmp_path):
    path = ending_at_once(model, tmp_path, "The harbour", after=3)
    ended = answer("-p", "The harbour", "--raw", "-n", "12", path=path)
    assert (len(ended["token_ids"]), ended["finish_reason"]) == (4, "stop")
    whole = answer("-p", "The harbour", *RAW, path=path)
    assert (len(whole["token_ids"]), whole["finish_reason"]) == (12, "length")
    assert whole["token_ids"][:4] == ended["token_ids"]


def test_each_of_several_stop_strings_stops(answer):
    text = answer("-p", "The harbour", *RAW)["text"]
    early, late = text[1:3], text[4:6]
    found = answer("-p", "The harbour", *RAW, "--stop", late, "--stop", early)
    assert (found["text"], found["finish_reason"]) == (text[: text.index(early)], "stop")
    assert answer("-p", "The harbour", *RAW, "--stop", late)["text"] == text[: text.index(late)]


def test_a_chat_template_is_used_where_there_is_one_unless_raw(answer, model):
    tokenizer = Tokenizer.from_directory(model)
    chat = tokenizer.encode_chat([{"role": "user", "content": "Hello"}])
    assert answer("-p", "Hello", "-n", "1")["prompt_token_ids"] == chat
    assert answer("-p", "Hello", "-n", "1", "--chat")["prompt_token_ids"] == chat
    assert answer("-p", "Hello", "-n", "1", "--raw")["prompt_token_ids"] == tokenizer.encode("Hello")
    assert answer("-p", "Hello", "-n", "1", OCTAVO_CHAT="0")["prompt_token_ids"] == tokenizer.encode("Hello")


def test_without_a_template_the_prompt_is_raw(answer, model, tmp_path):
    path = tmp_path / "llama"
    shutil.copytree(model, path)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert answer("-p", "Hello", "-n", "1", path=path)["prompt_token_ids"] == Tokenizer.from_directory(path).encode(
        "Hello"
    )


def test_chat_without_a_template_is_refused_before_the_model_is_loaded(octavo, model, tmp_path, loads_nothing):
    path = tmp_path / "llama"
    shutil.copytree(model, path)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    done = octavo("generate", "-m", path, "-p", "Hello", "--chat")
    assert done.status == 2
    assert "no chat template" in done.error and "--raw" in done.error


def test_control_tokens_are_text_unless_they_are_parsed(answer):
    marked = "<|im_end|>"
    assert EOS_TOKEN_ID not in answer("-p", marked, *RAW)["prompt_token_ids"]
    assert answer("-p", marked, *RAW, "--parse-special")["prompt_token_ids"] == [EOS_TOKEN_ID]
    # It concerns raw prompts, so it makes the prompt one.
    assert answer("-p", marked, "-n", "1", "--parse-special")["prompt_token_ids"] == [EOS_TOKEN_ID]


def test_a_seed_makes_sampling_repeatable_and_temperature_changes_it(answer):
    sampled = ("-p", "The harbour", *RAW, "--temperature", "1.2", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.01")
    first = answer(*sampled, "--seed", "7")["token_ids"]
    assert answer(*sampled, "--seed", "7")["token_ids"] == first
    assert answer(*sampled, "--seed", "8")["token_ids"] != first
    assert answer("-p", "The harbour", *RAW)["token_ids"] != first
    assert (
        answer(*sampled[:-8], "--top-k", "1", "--seed", "7")["token_ids"]
        == (answer("-p", "The harbour", *RAW)["token_ids"])
    )


@pytest.mark.parametrize("storage", ["auto", "dense", "paged"])
@pytest.mark.parametrize("block_size", ["16", "64"])
def test_storage_and_block_size_change_nothing_but_the_route(answer, storage, block_size):
    found = answer("-p", "The harbour", *RAW, "--storage", storage, "--block-size", block_size)
    kind = "dense" if storage == "dense" else "paged"
    routes = paged_routes(1, 11) if kind == "paged" else {"dense": 12}
    assert (found["storage"], found["routes"]) == (kind, routes)
    assert found["token_ids"] == answer("-p", "The harbour", *RAW)["token_ids"]


@pytest.mark.parametrize("weights", ["auto", "full", "int4", "int8"])
@pytest.mark.parametrize("kv_dtype", ["auto", "f32", "k=f16,v=bf16", "q8_0", "k=q8_0,v=turbo4"])
def test_weights_and_kv_dtypes_give_an_answer_and_are_named(octavo, gguf, weights, kv_dtype):
    done = octavo(
        *("generate", "-m", gguf, "-p", "The harbour", *RAW, "--dtype", "bfloat16"),
        *("--weights", weights, "--kv-dtype", kv_dtype),
    )
    assert done.status == 0
    assert len(done.out) > 1
    assert {"auto": "f16 K/V", "f32": "f32 K/V"}.get(kv_dtype, f"{kv_dtype} K/V") in done.err
    assert {"int4": "int4", "int8": "int8"}.get(weights, "bfloat16") in done.err


def test_the_context_limit_ends_the_answer(answer):
    found = answer("-p", "The harbour", "--raw", "--ignore-eos", "-n", "500", "--max-context", "64")
    assert found["finish_reason"] == "length"
    assert found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"] == 64


def test_the_model_can_come_from_the_environment(octavo, model):
    done = octavo("generate", OCTAVO_MODEL=str(model), OCTAVO_PROMPT="The harbour", OCTAVO_MAX_TOKENS="3")
    assert done.status == 0 and done.out


@pytest.mark.parametrize(
    ("value", "stops"),
    [
        ("two words", ("two words",)),
        ("\n\n", ("\n\n",)),
        ('["a b", "c"]', ("a b", "c")),
        ("[INST]", ("[INST]",)),
        ("[1, 2]", ("[1, 2]",)),
        ("", ()),
    ],
)
def test_the_variable_of_stop_holds_one_text_or_a_json_array(monkeypatch, value, stops):
    from octavo.cli.engine_options import stop_strings

    monkeypatch.setenv("OCTAVO_STOP", value)
    assert stop_strings(None) == stops
    assert stop_strings(["from the command line"]) == ("from the command line",)


def test_the_variable_of_stop_stops(answer):
    text = answer("-p", "The harbour", *RAW)["text"]
    assert answer("-p", "The harbour", *RAW, OCTAVO_STOP=text[2:5])["text"] == text[: text.index(text[2:5])]
