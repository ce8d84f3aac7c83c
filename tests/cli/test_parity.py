"""`octavo parity`: its output, its exit statuses, and the arm that is a process."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.cli import parity
from octavo.config import EngineConfig
from octavo.engine.loaded_model import plan_model
from octavo.parity import ARMS, runner
from octavo.parity.cli_arm import trace_cli
from octavo.parity.server_arm import ServedAnswers
from octavo.step_batch import StorageKind
from tests.cli.conftest import Run
from tests.paged_routes import PAGED_ROUTES
from tests.tiny_models import save_hf


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    save_hf(path, "llama", num_hidden_layers=1, max_position_embeddings=512)
    return path


@pytest.fixture(params=["repeating", pytest.param("real", marks=pytest.mark.nightly)])
def servers(request, monkeypatch) -> None:
    """By day the server arms repeat what the engine alone says; tests/parity asks real ones."""

    def repeat(plan, config, kind, questions, noise):
        routes = {"dense": 1} if kind is StorageKind.DENSE else dict.fromkeys(PAGED_ROUTES, 1)
        return ServedAnswers([deepcopy(question.expected) for question in questions], routes)

    if request.param == "repeating":
        monkeypatch.setattr(runner, "ask_server", repeat)


@pytest.mark.usefixtures("servers")
def test_arms_that_agree_exit_0_and_json_is_one_object(octavo: Run, small, monkeypatch):
    monkeypatch.setattr(parity, "MIN_TOKENS", 16)
    # Variables that set flags must not reach the process that is the command-line arm.
    done = octavo("parity", "-m", small, "--json", "-n", 16, OCTAVO_TEMPERATURE="2.0", OCTAVO_STOP="e", OCTAVO_CHAT="1")
    assert done.status == 0
    found = json.loads(done.out)
    assert done.out.count("\n") == 1
    assert list(found) == ["model", "equal", "arms"]
    assert (found["model"], found["equal"]) == ("llama", True)
    assert [arm["name"] for arm in found["arms"]] == [arm for arm in ARMS if arm != "graph"]
    for arm in found["arms"]:
        assert list(arm) == ["name", "equal", "first_divergence", "max_logit_diff", "routes"]
        assert (arm["equal"], arm["first_divergence"]) == (True, None)
        paged = any(part in arm["name"] for part in ("paged", "chunk", "cached", "preempted", "imported", "shift"))
        paged = paged and "dense" not in arm["name"]
        gathers = "gather" in arm["name"] or "codec" in arm["name"]
        assert set(arm["routes"]) == ({"gather"} if gathers else PAGED_ROUTES if paged else {"dense"})
    assert done.err.count("\n") == 1 + len(ARMS)  # what was chosen, and each arm as it ends


def test_one_arm_can_be_chosen_and_what_cannot_be_run_is_told(octavo, small):
    chosen = ("--arm", "context_shift", "--arm", "paged_b1")
    done = octavo("parity", "-m", small, *chosen)
    assert done.status == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["paged_b1", "context_shift", "llama:"]
    done = octavo("parity", "-m", small, *chosen, "--kv-dtype", "k=q8_0,v=f16")
    assert done.status == 0
    assert "context_shift          skipped: kv dtype q8_0 for k cannot be shifted" in done.out


def test_a_fault_in_the_command_line_arm_exits_1_and_is_told_in_words(octavo, small):
    done = octavo(
        "parity", "-m", small, "--dtype", "bfloat16", "--inject-fault", "cli", "--arm", "cli", "--arm", "dense_b1"
    )
    assert done.status == 1
    *arms, verdict = done.out.splitlines()
    assert verdict == "llama: NOT EQUAL (bitwise)"
    assert [line.split()[:2] for line in arms] == [["dense_b1", "equal"], ["cli", "DIFFERS"]]
    assert "octavo: error" not in done.err


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--inject-fault", "nope"), ["'nope'", "dense_b1", "cli"]),
        (("--arm", "dense_b1", "--arm", "nope"), ["'nope'", "dense_b1", "cli"]),
        (("--arm", "context_shift", "--kv-dtype", "k=q8_0,v=f16"), ["context_shift: kv dtype q8_0 for k cannot be"]),
        (("-n", "63"), ["63", "at least 64"]),
        (("-n", "400"), ["400 tokens", "512"]),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused(octavo, small, arguments, fragments):
    done = octavo("parity", "-m", small, *arguments)
    assert done.status == 2
    for fragment in fragments:
        assert fragment in done.error


def test_the_process_that_fails_says_why_in_the_arm(small, tmp_path):
    config = EngineConfig(dtype="bfloat16", device="cpu", threads=1)
    plan = plan_model(small, config)
    trace = trace_cli(plan, replace(config, max_context=8), "one two three four five six", [1], 64)
    assert trace.problem is not None
    assert trace.problem.startswith("octavo generate ended with status 2: octavo: error: the prompt has ")
