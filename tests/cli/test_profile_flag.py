"""`--profile DIR` of `octavo generate` and `octavo bench decode`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import decode, peers
from tests.cli.conftest import Run, command, environment


def step_labels(directory: Path) -> list[str]:
    (path,) = directory.iterdir()
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("name", "").startswith("octavo.step ")]


def test_generate_writes_a_trace_of_its_first_steps_and_the_same_answer(octavo: Run, model, tmp_path):
    """As a process: the profiler itself must print nothing."""
    arguments = ("generate", "-m", model, "-p", "The harbour", "--raw", "--ignore-eos", "-n", "6")
    profiled = (*arguments, "--profile", tmp_path / "traces", "--profile-steps", 3)
    done = subprocess.run(command(*profiled), env=environment(), capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.decode()) == (0, octavo(*arguments).out)
    (path,) = (tmp_path / "traces").iterdir()
    chosen, told = done.stderr.decode().splitlines()
    assert chosen.startswith("octavo: llama (llama), ")
    assert told == f"octavo: profile of 3 steps written to {path}"
    labels = step_labels(tmp_path / "traces")
    assert len(labels) == 3 and labels[0].startswith("octavo.step 0: 1 rows, ")


def test_an_answer_shorter_than_the_profile_has_the_steps_that_there_were(octavo: Run, model, tmp_path):
    done = octavo(
        "generate", "-m", model, "-p", "x", "--raw", "--ignore-eos", "-n", "2", "--json", "--profile", tmp_path
    )
    assert done.status == 0 and json.loads(done.out)["usage"]["completion_tokens"] == 2
    assert len(step_labels(tmp_path)) == 2


@pytest.mark.usefixtures("loads_nothing")
@pytest.mark.parametrize("name", ["generate", "bench decode"])
def test_a_directory_that_cannot_be_written_to_is_refused_before_loading(octavo: Run, model, tmp_path, name):
    (tmp_path / "file").write_text("")
    done = octavo(*name.split(), "-m", model, "--profile", tmp_path / "file")
    assert done.status == 2
    assert "--profile" in done.error and "cannot be written to" in done.error and "name another" in done.error
    done = octavo(*name.split(), "-m", model, "--profile", tmp_path, "--profile-steps", 0)
    assert done.status == 2 and "--profile-steps is 0" in done.error


def test_bench_decode_profiles_a_run_that_it_does_not_time(octavo: Run, model, tmp_path, monkeypatch):
    runs: list[list[str]] = []

    def generate(path: Path, flags: list[str], prompt: str) -> tuple[dict[str, Any], int]:
        runs.append(flags)
        timings = {"decode_tps": 1.0, "prefill_tps": 1.0}
        return {"timings": timings, "usage": {"prompt_tokens": 8}, "prompt_token_ids": [1]}, 1 << 20

    monkeypatch.setattr(decode, "_generate", generate)
    monkeypatch.setattr(peers, "find_peer", lambda path, python: None)
    arguments = ("bench", "decode", "-m", model, "--repeats", 2, "--new-tokens", 4, "--json")
    assert octavo(*arguments, "--profile", tmp_path, "--profile-steps", 2).status == 0
    warm_up, *timed, profiled = runs
    assert len(timed) == 6 and not any("--profile" in each for each in (warm_up, *timed))
    assert profiled[profiled.index("--profile") :] == ["--profile", str(tmp_path), "--profile-steps", "2", "-n", "4"]
