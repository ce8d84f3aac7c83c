"""`octavo bench overhead`: its arithmetic on synthetic rounds, its processes on loads where only shape matters."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from octavo.bench import overhead
from octavo.bench.child_process import ChildProcess, children_of, cpu_seconds, run_to_end
from octavo.bench.overhead import Load, OverheadProtocol, OverheadRound, OverheadRun
from octavo.bench.overhead_report import overhead_lines
from octavo.errors import EngineFault, InvalidRequest
from tests.cli.conftest import Run

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="processor times are read from /proc")


def load(tokens: int = 1000, wall_s: float = 1.0, web_cpu_s: float = 0.25, chunks: int | None = None) -> Load:
    return Load(4, wall_s, tokens, chunks or tokens, web_cpu_s, 0.5, 0.1)


def round_(served_tps: int = 960, web_cpu_s: float = 0.25, http_s: float = 0.009) -> OverheadRound:
    return OverheadRound(
        alone_tps=1000.0,
        alone_cpu_s=0.3,
        served=load(served_tps),
        many=load(web_cpu_s=web_cpu_s),
        first_token_alone_s=0.005,
        first_token_http_s=http_s,
    )


def test_what_is_lost_is_a_share_of_the_engine_alone_and_tokens_count_per_second_of_the_web_process():
    found = round_()
    assert found.lost_share == pytest.approx(0.04)
    assert found.many.tokens_per_web_cpu_s == 4000
    assert load(chunks=250).tokens_per_chunk == 4
    assert load(web_cpu_s=0).tokens_per_web_cpu_s == float("inf")


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"served_tps": 940}, ["lost to the server"]),
        ({"web_cpu_s": 0.5}, ["per CPU-second"]),
        ({"http_s": 0.016}, ["added"]),
    ],
    ids=str,
)
def test_the_table_holds_the_medians_against_the_goals(changes, missed):
    run = OverheadRun(OverheadProtocol(), rounds=[round_(**changes)] * 2 + [round_(served_tps=1), round_(**changes)])
    lines = list(overhead_lines(run))
    goals = [line for line in lines if "goal" in line]
    assert len(goals) == 3
    named = [next(name for name in ("lost to the server", "per CPU-second", "added") if name in line) for line in goals]
    assert [name for name, line in zip(named, goals, strict=True) if line.endswith("MISSED")] == missed
    assert "CPU used: web 25%, engine 50%, clients 10% of one; 1.00 tokens per chunk" in "\n".join(lines)


def test_json_has_rounds_and_figures_even_when_it_ended_early():
    run = OverheadRun(OverheadProtocol(rounds=3), rounds=[round_()])
    found = json.loads(json.dumps(run.as_object()))
    assert not found["complete"] and found["problem"]
    assert next(overhead_lines(run)).startswith("INCOMPLETE: ")
    assert found["figures"]["first_token_added_s"]["median"] == pytest.approx(0.004)
    assert OverheadRun(OverheadProtocol()).as_object()["figures"] == {}


@pytest.mark.parametrize(("watched_tps", "met"), [(955, True), (940, False)])
def test_what_a_viewer_costs_is_a_share_of_the_same_load_without_one(watched_tps: int, met: bool) -> None:
    watched = replace(load(watched_tps), engine_cpu_s=0.52)
    run = OverheadRun(OverheadProtocol(viewer=True), rounds=[replace(round_(960), watched=watched)] * 3)
    assert run.as_object()["figures"]["viewer_share"]["median"] == pytest.approx(1 - watched_tps / 960)
    assert run.as_object()["figures"]["viewer_cpu_share"]["median"] == pytest.approx(0.02)
    [line] = [line for line in overhead_lines(run) if "lost to one viewer" in line]
    assert line.endswith("met" if met else "MISSED")


@needs_proc
@pytest.mark.parametrize(
    "viewer", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["with a viewer", "without"]
)
def test_a_small_run_measures_both_sides_and_a_viewer_with_the_same_tokens(octavo: Run, viewer: bool) -> None:
    sizes = ("--clients", 2, "--many-clients", 3, "--step-ms", 1, "--prompt-tokens", 4, "--max-tokens", 6)
    done = octavo("bench", "overhead", *sizes, *(["--viewer"] if viewer else []), "--rounds", 2, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["complete"] and found["problem"] is None and len(found["rounds"]) == 2
    for each in found["rounds"]:
        assert each["served"]["output_tokens"] == 2 * 6
        assert each["many"]["output_tokens"] == 3 * 6
        assert (each["watched"] or {}).get("output_tokens") == (2 * 6 if viewer else None)
        assert each["first_token_http_s"] > 0.001 and each["first_token_alone_s"] > 0.001
    assert ({"viewer_share", "viewer_cpu_share"} <= set(found["figures"])) == viewer
    assert done.err == "octavo: round 1 of 2\noctavo: round 2 of 2\n"
    assert children_of(os.getpid()) == []


class NoProcess(AbstractContextManager[None]):
    def __init__(self, *arguments: str) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def read(self) -> dict[str, str]:
        return {"url": "http://127.0.0.1:9"}


@needs_proc
@pytest.mark.parametrize(
    ("error", "raised", "problem"),
    [
        (EngineFault("it ended"), EngineFault, "round 2 of 3: it ended"),
        (asyncio.CancelledError(), asyncio.CancelledError, "round 2 of 3: interrupted"),
    ],
    ids=["fault", "interrupt"],
)
def test_what_ends_it_is_told_with_its_round_and_the_rounds_before_are_kept(
    error: BaseException, raised: type[BaseException], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pair(overhead._Pair):
        async def until_ready(self) -> None:
            pass

        async def round(self, number: int) -> OverheadRound:
            if number == 1:
                raise error
            return round_()

    monkeypatch.setattr(overhead, "ChildProcess", NoProcess)
    monkeypatch.setattr(overhead, "_Pair", Pair)
    run = OverheadRun(OverheadProtocol(rounds=3))
    with pytest.raises(raised):
        asyncio.run(overhead.bench_overhead(run))
    found = run.as_object()
    assert (len(found["rounds"]), found["complete"], found["problem"]) == (1, False, problem)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"clients": 0}, "clients is 0; it must be 1 to 512"),
        ({"many_clients": 513}, "many clients is 513"),
        ({"step_ms": -1}, "step ms is -1"),
        ({"max_tokens": 1}, "max tokens is 1; it must be 2"),
        ({"rounds": 0}, "rounds is 0"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(changes, fragment):
    with pytest.raises(InvalidRequest, match=fragment):
        replace(OverheadProtocol(), **changes).check()


def test_a_process_that_ends_is_told_with_its_last_words():
    with (
        ChildProcess("http.server", "nowhere") as child,
        pytest.raises(EngineFault, match=r"the process `server nowhere` ended: .*invalid int value: 'nowhere'"),
    ):
        child.ask({})


@needs_proc
def test_a_process_that_an_interrupt_ended_before_us_is_no_fault() -> None:
    with ChildProcess("json.tool") as child:
        os.kill(child.pid, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            child.read()


@needs_proc
def test_processor_time_is_that_of_another_process_which_is_found_among_our_children():
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in children_of(os.getpid())
        assert 0.2 < cpu_seconds(child.pid) < 3
        child.communicate(b"\n")
    with pytest.raises(OSError, match=str(child.pid)):
        cpu_seconds(child.pid)


@needs_proc
def test_an_interrupt_leaves_nothing_of_the_process_that_is_waited_for() -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            run_to_end([sys.executable, "-c", "import time; time.sleep(60)"], "")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert children_of(os.getpid()) == []


def test_a_process_that_runs_to_its_end_is_given_the_text_and_tells_what_it_printed() -> None:
    done = run_to_end([sys.executable, "-c", "import sys; print(input()[::-1]); sys.exit('no')"], "abc\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "cba\n", "no\n")
