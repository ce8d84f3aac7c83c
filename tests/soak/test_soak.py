"""The short form of the soak on every run, the long one at night; and that its clients notice what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.clients import Told, Wrong, check
from tests.soak.questions import Expected, Question
from tests.soak.scenario import SCENARIOS, Scenario
from tests.soak.soak import Soak
from tests.soak.watch import Counters

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the memory of processes in /proc")


# Windows and full layers, evicted and preempted together: what the others have of their own shows at night.
SHORT = [each for each in SCENARIOS if each.name == "gemma3 with windows"]


def soak(scenario: Scenario, path: Path, num_requests: int, num_questions: int) -> None:
    report = Soak.prepared(scenario, path, num_questions, seed=1).run(path, num_requests)
    print(report.line())


@pytest.mark.parametrize("scenario", SHORT, ids=lambda each: each.name)
def test_clients_of_all_kinds_get_what_an_engine_alone_answers_and_leave_nothing(scenario, tmp_path):
    soak(scenario, tmp_path / "model", 140, 24)


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_thousands_of_clients_get_what_an_engine_alone_answers_and_leave_nothing(scenario, tmp_path):
    soak(scenario, tmp_path / "model", 3000, 300)


TWO_PROCESSES = """
import asyncio, sys
from tests.server.server_process import ServerProcess, _running, ended_by_sigterm

with ended_by_sigterm(), _running(ServerProcess([sys.executable, "-c", "import time; time.sleep(60)"])) as server:
    print(server.process.pid, flush=True)
    asyncio.run(asyncio.sleep(60))
"""


def test_a_soak_that_is_terminated_ends_its_server():
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", TWO_PROCESSES], cwd=root, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        server = int(driver.stdout.readline())
        driver.terminate()
        assert driver.wait(20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


# -- what is noticed ----------------------------------------------------------------------------------------------

QUESTION = Question("/v1/completions", {"prompt": [5]}, (Expected("one two", "length", None),), 1, 4)
USAGE = {"prompt_tokens": 1, "completion_tokens": 4}


def chunk(text: str, finish_reason: str | None = None, index: int = 0, usage: object = None) -> dict[str, object]:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": usage}


def told(*chunks: dict[str, object], ended: bool = True) -> Told:
    found = Told()
    for each in chunks:
        found.take(each, whole=False)
    found.ended = ended
    return found


def test_an_answer_in_pieces_is_the_whole_one():
    check(QUESTION, told(chunk("one "), chunk("two"), chunk("", "length"), {"choices": [], "usage": USAGE}))
    whole = Told().take(chunk("one two", "length", usage=USAGE), whole=True)
    check(QUESTION, whole)


@pytest.mark.parametrize(
    "answer",
    [
        told(chunk("one too", "length", usage=USAGE)),
        told(chunk("one two", "stop", usage=USAGE)),
        told(chunk("one two", usage=USAGE)),
        told(chunk("one two", "length", usage={**USAGE, "completion_tokens": 5})),
        told(chunk("one two", "length")),
        told(chunk("one two", "length", usage=USAGE), ended=False),
        told(chunk("one two", "length", usage=USAGE), chunk("more", "length", index=1)),
        told(),
    ],
    ids=["text", "reason", "no reason", "count", "no count", "no end", "a choice more", "nothing"],
)
def test_any_other_answer_is_wrong(answer):
    with pytest.raises(Wrong):
        check(QUESTION, answer)


def test_a_choice_that_goes_on_after_its_end_and_an_error_in_a_stream_are_wrong():
    with pytest.raises(Wrong, match="after its end"):
        told(chunk("one two", "length"), chunk("more"))
    with pytest.raises(Wrong, match="broken off"):
        told(chunk("one"), {"error": {"message": "no"}})


def test_counters_are_read_with_and_without_labels():
    page = '# HELP a b\na 3.0\nb{group="0",state="live"} 1.0\nb{group="1",state="live"} 2.0\nb{state="free"} 4.0\n'
    found = Counters(page)
    assert found.total("a") == 3
    assert found.total("b", state="live") == 3
    assert found.total("b") == 7
    assert found.total("b", state="lost") == 0
    with pytest.raises(AssertionError, match="has no c"):
        found.total("c")
