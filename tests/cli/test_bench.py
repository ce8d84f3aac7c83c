"""`octavo bench decode` on a model and numbers so small that only its shape matters."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from octavo.bench import decode, peers
from octavo.bench.peers import Peer, PeerSpeed
from octavo.errors import EngineFault

FIGURES = ("first_token_s", "decode_tps", "prefill_tps", "peak_mib")


def test_figures_come_with_their_spread_as_json(octavo, model, monkeypatch):
    """The first process is one; what the others are asked is answered in this one."""
    process, asked = decode._generate, []

    def generate(path: Path, flags: list[str], prompt: str) -> tuple[dict[str, object], int]:
        asked.append((flags[-1], prompt))
        if len(asked) == 1:
            return process(path, flags, prompt)
        arguments = ("generate", "--json", "--raw", "--ignore-eos", "-m", path, *flags)
        answered = octavo(*arguments, stdin=prompt.encode())
        assert answered.status == 0, answered.err
        return json.loads(answered.out), 64 << 20

    monkeypatch.setattr(decode, "_generate", generate)
    done = octavo("bench", "decode", "-m", model, "--json", "--repeats", 1, "--prompt-tokens", 20, "--new-tokens", 5)
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["model"], found["repeats"], found["new_tokens"]) == ("llama", 1, 5)
    short = "The capital of France is"
    assert asked == [("1", short), ("1", short), ("5", short), ("2", " ".join(["word"] * 20))]
    for name in FIGURES:
        spread = found[name]
        assert 0 < spread["low"] <= spread["median"] <= spread["high"]


def test_a_table_without_a_peer_that_is_not_installed(octavo, gguf, monkeypatch):
    def generate(path: Path, flags: list[str], prompt: str) -> tuple[dict[str, object], int]:
        timings = {"decode_tps": 30.0, "prefill_tps": 200.0}
        return {"timings": timings, "usage": {"prompt_tokens": 8}, "prompt_token_ids": [1]}, 64 << 20

    monkeypatch.setattr(decode, "_generate", generate)
    for name in ("llama_cpp", "xllamacpp"):
        monkeypatch.setitem(sys.modules, name, None)
    done = octavo("bench", "decode", "-m", gguf, "--repeats", 1, "--prompt-tokens", 20, "--new-tokens", 5)
    assert (done.status, done.err) == (0, "run 1 of 1\n")
    head, of, *rows = done.out.splitlines()
    assert head.startswith("llama.gguf; ") and "octavo commit" in head and "torch" in head
    assert of == "median of 1 (least to most)"
    assert [row.split(",")[0].split("  ")[0] for row in rows] == ["first token", "decode", "prefill", "peak memory"]


@pytest.mark.parametrize(
    ("error", "status", "said"), [(EngineFault("it died"), 1, "it died"), (KeyboardInterrupt(), 130, "interrupted")]
)
@pytest.mark.parametrize(("fails_at", "arm"), [(6, "octavo"), (9, "llama.cpp")])
def test_rounds_before_a_failure_are_kept_with_its_arm_and_round(
    octavo, gguf, monkeypatch, error, status, said, fails_at, arm
):
    """One process warms up, then each round has three of ours and one of the peer."""
    calls = iter(range(1, 99))

    def step() -> None:
        if next(calls) == fails_at:
            raise error

    def generate(path: Path, flags: list[str], prompt: str) -> tuple[dict[str, object], int]:
        step()
        timings = {"decode_tps": 30.0, "prefill_tps": 200.0}
        return {"timings": timings, "usage": {"prompt_tokens": 8}, "prompt_token_ids": [1]}, 64 << 20

    def decode_peer(*given: object) -> PeerSpeed:
        step()
        return PeerSpeed(20.0, 100.0, 32 << 20)

    monkeypatch.setattr(decode, "_generate", generate)
    monkeypatch.setattr(Peer, "decode", decode_peer)
    monkeypatch.setattr(peers, "find_peer", lambda path, python: Peer("python", "xllamacpp", "1", "CPU : AVX2 = 1 | "))
    done = octavo("bench", "decode", "-m", gguf, "--repeats", 3, "--new-tokens", 5, "--json")
    assert done.status == status
    found = json.loads(done.out)
    problem = f"{arm}, round 2 of 3: {said}"
    assert (found["complete"], found["problem"]) == (False, problem)
    assert found["by_run"]["decode_tps"] == [30.0] and found["by_run"]["llama.cpp peak_mib"] == [32.0]
    assert found["ours_over"]["llama.cpp"]["peak_mib"]["median"] == 2.0
    assert found["peers"]["llama.cpp"]["build"] == "CPU : AVX2 = 1 |"
    if status == 1:
        assert done.err.splitlines()[-1] == f"octavo: error: {problem}"


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--repeats", "0"), "repeats is 0; it must be at least 1"),
        (("--new-tokens", "1"), "new tokens is 1; it must be at least 2"),
        (("--prompt-tokens", "0"), "prompt tokens is 0"),
        (("--threads", "x"), "--threads"),
        (("-m", "nowhere.gguf"), "nowhere.gguf"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(octavo, arguments, fragment):
    done = octavo("bench", "decode", *arguments)
    assert done.status == 2
    assert fragment in done.error


def test_random_weights_need_a_config_and_no_model(octavo, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "vocab_size": 300,
                "max_position_embeddings": 256,
                "tie_word_embeddings": True,
            }
        )
    )
    small = ("bench", "decode", "--random-weights", "--loads", "2x6", "--new-tokens", 4, "--repeats", 1)
    done = octavo(*small, "--config", tmp_path, "--device", "cpu", "--json")
    assert done.status == 0, done.err
    (cell,) = json.loads(done.out)["cells"]
    assert cell["load"] == "2x6" and cell["tokens_per_s"]["median"] > 0
    none = ("--loads", "", "--requests", 3, "--lengths", "2-9")
    done = octavo(*small, *none, "--config", tmp_path, "--device", "cpu", "--json")
    assert done.status == 0, done.err
    assert [cell["load"] for cell in json.loads(done.out)["cells"]] == ["3 requests of 2-9"]
    done = octavo(*small, "--config", tmp_path, "--peer-python", sys.executable)
    assert done.status == 2 and "leave --peer-python out" in done.err
    for wrong in ((), ("--config", tmp_path, "-m", "smollm2")):
        done = octavo(*small, *wrong)
        assert done.status == 2 and "--random-weights --config DIR" in done.err
    done = octavo("bench", "decode", "--requests", 3)
    assert done.status == 2 and "--requests needs --random-weights" in done.err


@pytest.mark.parametrize(
    ("said", "told"), [("", "without a word"), ("a warning\noctavo: error: no room\n", "octavo: error: no room")]
)
def test_a_process_that_fails_is_told_with_its_status_and_last_words(said, told, monkeypatch):
    done = CompletedProcess([], -9, stdout="", stderr=said)
    monkeypatch.setattr(decode, "run_to_end", lambda command, given: done)
    with pytest.raises(EngineFault, match=rf"^a measured process ended with status -9: {told}$"):
        decode._generate(Path("model.gguf"), [], "hi")
