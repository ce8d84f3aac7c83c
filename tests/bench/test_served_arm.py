"""One arm over a real server and a tiny model: what it says of its storage, and how its death is told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from octavo.bench.child_process import children_of
from octavo.bench.load_cell import CellRun
from octavo.bench.paired_run import start_server
from octavo.bench.served_arm import ArmCell, ArmPlace, ServedLoad, measure_arm, serving_arm
from octavo.bench.serving import Watcher
from octavo.errors import EngineFault

LOAD = ServedLoad((8, 20), (1, 2), 4, 1, 3, 60)
FLAGS = ["--threads=1", "--parallel=2"]


@pytest.mark.skipif(sys.platform != "linux", reason="the server's process is found in /proc")
def test_a_server_is_measured_and_one_that_is_killed_is_told_with_its_status(gguf: Path) -> None:
    arm = serving_arm("dense", gguf, [*FLAGS, "--storage=dense"], storage="dense")
    cells: list[ArmCell] = []
    pid = 0

    def keep(cell: ArmCell, done: CellRun) -> None:
        cells.append(cell)
        if cell.round == 2:
            os.kill(pid, signal.SIGKILL)

    def killed_in_the_second_round() -> None:
        nonlocal pid
        before = set(children_of(os.getpid()))
        with start_server(arm) as server:
            [pid] = set(children_of(os.getpid())) - before
            routes = asyncio.run(measure_arm(arm, server, LOAD, ArmPlace(0, 0, 2), keep, Watcher()))
            assert [each.problem for each in cells] == [None] * 4
            assert {each["route"] for each in routes} == {"dense"}
            assert all(each.figures.output_tps > 0 and each.figures.exact_prompts for each in cells)
            assert server.fault() is None
            asyncio.run(measure_arm(arm, server, LOAD, ArmPlace(1, 0, 2), keep, Watcher()))

    with pytest.raises(
        EngineFault,
        match=r"^the server died in prompt \d+, \d clients?: octavo serve ended with status -9: without a word$",
    ):
        killed_in_the_second_round()
    assert [each.problem is None for each in cells] == [True] * 5 + [False]
    assert "requests failed" in str(cells[-1].problem)
