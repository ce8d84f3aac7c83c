"""`octavo bench storage`: what it prints and keeps, and what it refuses before a server is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import served_arm
from octavo.bench.storage import bench_storage
from tests.bench.stub_servers import StubServers, steady_run_cell
from tests.cli.conftest import Run

SMALL = ("--prompt-tokens", "8,12", "--concurrency", "1,2", "--max-tokens", 4, "--threads", 1)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StubServers:
    """What the command starts in place of processes, in a directory of its own."""
    found = StubServers()
    monkeypatch.setattr(served_arm, "run_cell", steady_run_cell)
    monkeypatch.setattr(bench_storage, "__defaults__", (found,))
    monkeypatch.chdir(tmp_path)
    return found


def test_the_document_is_printed_and_the_raw_data_are_kept_without_being_asked_for(
    octavo: Run, gguf: Path, servers: StubServers, tmp_path: Path
) -> None:
    servers.behaviour = lambda arm, round_: {"slowness": 0.5 if arm.name == "dense" else 1.0}
    done = octavo("bench", "storage", "-m", gguf, *SMALL, "--parallel", 2, "--seed", 9)
    assert done.status == 0, done.err
    assert done.out.startswith("# Storage of llama on cpu, ")
    command = "octavo bench storage -m llama.gguf --parallel=2 --threads=1 --prompt-tokens=8,12 --concurrency=1,2"
    assert f"    {command} --rounds=5 --max-tokens=4 --requests=1 --seed=9" in done.out.splitlines()
    assert done.out.endswith('    ("llama", "cpu"): StorageKind.DENSE,\n')
    assert str(gguf.parent) not in done.out
    [kept] = tmp_path.glob("*-llama-storage.jsonl")
    assert done.err.splitlines()[0] == f"octavo: raw data go to {kept.name}"
    text = kept.read_text()
    assert str(gguf.parent) not in text and len(text.splitlines()) == 1 + 15 * 5 + 1
    assert json.loads(text.splitlines()[-1])["preferred_storage"] == "dense"


def test_json_is_one_object_with_decision_and_rounds(octavo: Run, gguf: Path, servers: StubServers) -> None:
    done = octavo("bench", "storage", "-m", gguf, *SMALL, "--json", "--out", "raw.jsonl")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["bench"], found["complete"], found["preferred_storage"]) == ("storage", True, "paged")
    assert found["entry"] == '("llama", "cpu"): StorageKind.PAGED,'
    assert [each["rounds"] for each in found["cells"]] == [5] * 4 and len(found["rounds"]) == 60
    assert found["arms"]["paged again"].startswith("octavo serve -m llama.gguf --storage=paged --parallel=8")
    again = octavo("bench", "storage", "-m", gguf, *SMALL, "--out", "raw.jsonl")
    assert again.status == 2 and "--out 'raw.jsonl' cannot be written (File exists)" in again.error


def test_an_arm_that_dies_leaves_table_and_raw_data_and_a_failing_status(
    octavo: Run, gguf: Path, servers: StubServers, tmp_path: Path
) -> None:
    servers.behaviour = lambda arm, round_: {"dies_at": 6} if (arm.name, round_) == ("dense", 1) else {}
    done = octavo("bench", "storage", "-m", gguf, *SMALL, "--out", "raw.jsonl", "--plot", "x.png")
    assert done.status == 1
    last = done.err.splitlines()[-1]
    assert last.startswith("octavo: error: dense, round 2 of 5: the server died in ")
    assert "**Nothing is decided**: dense, round 2 of 5" in done.out and "StorageKind" not in done.out
    assert json.loads((tmp_path / "raw.jsonl").read_text().splitlines()[-1])["preferred_storage"] is None
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--kv-budget", "1KiB"), "paged: the kv budget is 1024 bytes"),
        (("--prompt-tokens", "8,1021"), "paged: prompts of 1021 tokens with 4 new ones are 1025, and 1024 fit"),
        (
            ("--max-context", "20", "--prompt-tokens", "17"),
            "paged: prompts of 17 tokens with 4 new ones are 21, and 20",
        ),
        (("--rounds", "4"), "rounds is 4; it must be 5 to 1000, or nothing is decided"),
        (("--concurrency", "1,x"), "the concurrency is '1,x'"),
        (("--prompt-tokens", "a"), "the prompt length is 'a'"),
        (("--max-tokens", "0"), "max tokens is 0"),
        (("--parallel", "0"), "max num seqs is 0"),
        (("--out", "nowhere/x"), "--out 'nowhere/x' cannot be written"),
        (("-m", "nowhere.gguf"), "nowhere.gguf"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_a_server_is_started(
    octavo: Run, gguf: Path, servers: StubServers, arguments: tuple[Any, ...], fragment: str
) -> None:
    done = octavo("bench", "storage", "-m", gguf, *SMALL, *arguments)
    assert done.status == 2
    assert fragment in done.error
    assert servers.started == []


def test_a_family_without_paged_support_leaves_nothing_to_decide(
    octavo: Run, gguf: Path, servers: StubServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo.models.llama import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "supports_paged", False)
    done = octavo("bench", "storage", "-m", gguf, *SMALL)
    assert done.status == 2
    assert "paged was asked for, but llama has no paged support, so that there is nothing to decide" in done.error
