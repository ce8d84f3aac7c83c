"""`octavo inspect`: the ledger of a model, without reading its weights."""

from __future__ import annotations

import json

import pytest

from octavo.config import EngineConfig
from octavo.engine.loaded_model import plan_model
from tests.tiny_models import save_hf, save_tokenizer

KEYS = [
    *("model", "architecture", "layers", "hidden_size", "vocab_size", "trained_context", "tensor_bytes", "device"),
    *(
        "instructions",
        "threads",
        "dtype",
        "weights",
        "exact",
        "exact_reason",
        "cpu_kernels",
        "kv_dtype",
        "storage",
        "storage_reason",
        "context_limit",
    ),
    *("max_context", "parallel", "fits_context", "fits_parallel", "memory"),
]
IN_SENTENCES = ("context_limit", "fits_context", "fits_parallel", "memory")
GROUP_KEYS = [
    *("kind", "layers", "window", "bytes_per_token", "num_blocks", "block_bytes", "ring_bytes", "snapshot_bytes"),
]


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("weights were read")

    monkeypatch.setattr("octavo.layers.quant_tensor.QuantTensor.dequantize", refuse)


def test_json_is_one_object_that_adds_up_to_the_ledger(octavo, model):
    done = octavo("inspect", model, "--json", "--parallel", 4, "--max-context", 100, "--dtype", "bfloat16")
    assert (done.status, done.err, done.out.count("\n")) == (0, "", 1)
    found = json.loads(done.out)
    assert list(found) == KEYS
    assert (found["model"], found["architecture"], found["layers"], found["parallel"]) == ("llama", "llama", 2, 4)
    assert (found["trained_context"], found["max_context"], found["dtype"]) == (1024, 100, "bfloat16")
    assert (found["storage"], found["kv_dtype"]) == ("paged", {"k": "f16", "v": "f16"})
    memory = found["memory"]
    (group,) = memory.pop("groups")
    assert list(group) == GROUP_KEYS
    assert (group["layers"], group["num_blocks"], group["bytes_per_token"]) == (2, 4 * 7, 2 * 2 * (16 + 16) * 2)
    assert group["block_bytes"] == memory["kv_bytes"] == 28 * 16 * group["bytes_per_token"]
    parts = ("weight_bytes", "runtime_bytes", "workspace_bytes", "activation_bytes", "graph_bytes", "kv_bytes")
    assert sum(memory[part] for part in parts) == memory["total_bytes"] <= memory["available_bytes"]
    config = EngineConfig(max_num_seqs=4, max_context=100, dtype="bfloat16", threads=1)
    assert memory["weight_bytes"] == plan_model(model, config).ledger.weight_bytes


def test_text_is_a_plain_table_with_the_same_facts(octavo, model):
    done = octavo("inspect", model, "--dtype", "bfloat16")
    assert (done.status, done.err) == (0, "")
    found = json.loads(octavo("inspect", model, "--dtype", "bfloat16", "--json").out)
    rows = [line.split("  ", 1) for line in done.out.splitlines()]
    facts = {name: value.strip() for name, value in rows}
    for name in KEYS:
        if name in IN_SENTENCES:
            continue
        expected = "k=f16, v=f16" if name == "kv_dtype" else str(found[name])
        assert facts[name.replace("_", " ")] == expected
    assert facts["weight memory"] == f"{found['memory']['weight_bytes'] / (1 << 20):,.1f} MiB"
    assert facts["2 full layers"].startswith("256 bytes per token, ")
    assert len({line.index(value) for line, value in zip(done.out.splitlines(), facts.values(), strict=True)}) == 1


def test_a_family_of_which_nothing_was_measured_is_dense_for_one_sequence_alone(octavo, tmp_path):
    save_hf(tmp_path, "qwen3")
    save_tokenizer(tmp_path)
    done = octavo("inspect", tmp_path)
    assert (done.status, done.err) == (0, "")
    storage = next(line for line in done.out.splitlines() if line.startswith("storage  "))
    assert storage.split("  ", 1)[1].strip() == "dense for generate; paged for chat, serve and batch"


def test_a_gguf_file_and_a_directory_of_the_same_model_agree(octavo, gguf):
    # What `auto` is depends on the processor and on what the weights are.
    given = ("--json", "--weights", "full", "--dtype", "bfloat16")
    file = json.loads(octavo("inspect", gguf, *given).out)
    directory = json.loads(octavo("inspect", gguf.parent / "hf", *given).out)
    assert file["tensor_bytes"] < directory["tensor_bytes"]
    differing = ("model", "tensor_bytes", "memory", "fits_parallel")
    assert {k: v for k, v in file.items() if k not in differing} == {
        k: v for k, v in directory.items() if k not in differing
    }
    assert file["memory"]["weight_bytes"] == directory["memory"]["weight_bytes"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [(("--storage", "dense"), "dense"), (("--parallel", 2), "paged"), (("--storage", "paged"), "paged")],
)
def test_a_storage_that_holds_for_all_commands_is_told_alone(octavo, model, flags, said):
    lines = octavo("inspect", model, *flags).out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("storage  ")] == [said]


@pytest.mark.parametrize(
    ("storage", "said"),
    [("dense", "a ring of 16 tokens per sequence"), ("paged", "40 blocks, window 16")],
)
def test_windows_are_shown_as_they_are_kept(octavo, tmp_path, storage, said):
    save_hf(tmp_path, "gemma3")
    done = octavo("inspect", tmp_path, "--storage", storage, "--dtype", "bfloat16", "--max-context", "512")
    (line,) = [line for line in done.out.splitlines() if line.startswith("5 sliding layers")]
    assert line.endswith(f"1,280 bytes per token, {said}")
    assert any(line.startswith("1 full layer ") for line in done.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--parallel", 0), "--parallel is 0; it must be at least 1"),
        (("--max-context", 5000), "1024"),
        (("--storage", "heap"), "'heap'"),
        (("--block-size", 17), "17"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(octavo, model, arguments, fragment):
    done = octavo("inspect", model, *arguments)
    assert done.status == 2
    assert fragment in done.error


def test_the_trade_between_length_and_number_is_shown(octavo, model):
    plan = plan_model(model, EngineConfig(max_num_seqs=4, dtype="bfloat16", threads=1))
    budget = 100 * 16 * plan.ledger.groups[0].bytes_per_token
    asked = ("--parallel", 4, "--kv-budget", budget, "--dtype", "bfloat16")
    found = json.loads(octavo("inspect", model, "--json", *asked).out)
    assert (found["max_context"], found["context_limit"], found["parallel"]) == (1024, 1024, 4)
    assert (found["fits_context"], found["fits_parallel"]) == (25 * 16, 100 // 64)
    assert found["memory"]["kv_bytes"] == budget
    lines = octavo("inspect", model, *asked).out.splitlines()
    assert any(line.startswith("fits together ") and line.endswith("4 sequences of 400 tokens each") for line in lines)
    assert any(line.startswith("fits at full length ") and "1 sequence of 1,024 tokens" in line for line in lines)


@pytest.mark.parametrize(
    ("budget", "fragments"),
    [
        (1000, ["kv budget is 1000 bytes", "too small for one block", "give at least 4096 "]),
        ("1000000GiB", ["kv budget is 1073741824000000 bytes", "are left after weights", "give at most "]),
        ("4 gigs", ["--kv-budget is '4 gigs'", "4GiB"]),
    ],
    ids=str,
)
def test_a_budget_that_cannot_be_is_refused_with_what_can(octavo, model, budget, fragments):
    done = octavo("inspect", model, "--kv-budget", budget, "--dtype", "bfloat16")
    assert done.status == 2
    for fragment in fragments:
        assert fragment in done.error
