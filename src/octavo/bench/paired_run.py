"""Three arms in turn, each on a server of its own: baseline, candidate, and the baseline again as null arm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TextIO

from octavo.bench.decision import LEAST_ROUNDS, PairedRound, judge
from octavo.bench.load_cell import CellRun
from octavo.bench.served_arm import Arm, ArmCell, ArmPlace, ServedLoad, Server, measure_arm, request_lines
from octavo.bench.serving import Watcher, rotated
from octavo.bench.serving_figures import RoundFigures
from octavo.errors import EngineFault, OctavoError
from octavo.parity.server_process import ServedProcess

Start = Callable[[Arm], AbstractContextManager[Server]]


def start_server(arm: Arm) -> AbstractContextManager[Server]:
    """A process of `arm.command`."""
    return ServedProcess(arm.command, arm.environment)


@dataclass(slots=True)
class PairedRun:
    """Grows while it is measured, so that what ends it loses nothing. `routes` counts ways of attention by arm."""

    load: ServedLoad
    rounds: int
    baseline: Arm
    candidate: Arm
    again: Arm
    cells: list[ArmCell] = field(default_factory=list)
    routes: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[Arm, Arm, Arm]:
        return self.baseline, self.candidate, self.again

    def paired(
        self, figure: Callable[[RoundFigures], float]
    ) -> tuple[dict[str, list[PairedRound]], dict[str, list[str]]]:
        """By cell, the rounds in which all three arms count; and why others do not."""
        found = {(each.cell, each.round, each.arm): each for each in self.cells}
        rounds: dict[str, list[PairedRound]] = {}
        lost: dict[str, list[str]] = {}
        for cell in self.load.cells:
            kept, missing = rounds.setdefault(cell.name, []), lost.setdefault(cell.name, [])
            for round_ in range(1, self.rounds + 1):
                arms = [found.get((cell, round_, arm.name)) for arm in self.arms]
                good = [each for each in arms if each is not None and each.problem is None]
                if len(good) == len(arms):
                    kept.append(PairedRound(*(figure(each.figures) for each in good)))
                    continue
                for each in arms:
                    if each is not None and each.problem is not None:
                        missing.append(f"{each.arm}, round {round_}: {each.problem}")
        return rounds, lost

    def as_object(self) -> dict[str, Any]:
        return {
            "load": self.load.as_object(),
            "rounds_asked": self.rounds,
            "arms": {arm.name: arm.shown for arm in self.arms},
            "routes": self.routes,
            "rounds": [each.as_object() for each in self.cells],
        }


def run_arms(
    run: PairedRun, arms: Sequence[Arm], raw: TextIO | None, watch: Watcher, start: Start = start_server
) -> None:
    """Measure `arms` in every round, in rotating order. Each cell goes to `raw` as a JSON line when it is done.

    Raises `EngineFault` that names the arm and the round in which it could not go on; `run` keeps what was measured.
    """
    watch.begin("starting", run.rounds * len(arms) * run.load.num_requests)
    for round_ in range(run.rounds):
        _run_round(run, arms, round_, raw, watch, start)


def run_paired(run: PairedRun, raw: TextIO | None, watch: Watcher, start: Start = start_server) -> None:
    """`run_arms` of all three, ended as soon as a cell can no longer have the rounds that a verdict takes.

    Raises `EngineFault` as `run_arms`, and for such a cell as `judge`.
    """
    watch.begin("starting", run.rounds * len(run.arms) * run.load.num_requests)
    for round_ in range(run.rounds):
        _run_round(run, run.arms, round_, raw, watch, start)
        rounds, lost = run.paired(lambda figures: figures.output_tps)
        most_lost = run.rounds - LEAST_ROUNDS
        hopeless = {cell: found for cell, found in rounds.items() if round_ + 1 - len(found) > most_lost}
        if hopeless:
            judge(hopeless, run.rounds, lost)


def _run_round(
    run: PairedRun, arms: Sequence[Arm], round_: int, raw: TextIO | None, watch: Watcher, start: Start
) -> None:
    for position, arm in enumerate(rotated(arms, round_)):
        place = ArmPlace(round_, position, run.rounds)
        watch.cell(f"{place.label(arm)}, starting a server")
        try:
            _run_arm(run, arm, place, raw, watch, start)
        except OctavoError as error:
            raise EngineFault(f"{arm.name}, round {round_ + 1} of {run.rounds}: {error}") from error


def _run_arm(run: PairedRun, arm: Arm, place: ArmPlace, raw: TextIO | None, watch: Watcher, start: Start) -> None:
    def keep(cell: ArmCell, done: CellRun) -> None:
        run.cells.append(cell)
        write_line(raw, {"type": "cell", **cell.as_object(), "requests": request_lines(done.outcomes)})

    with start(arm) as server:
        routes = asyncio.run(measure_arm(arm, server, run.load, place, keep, watch))
    write_line(raw, {"type": "routes", "arm": arm.name, "round": place.round + 1, "routes": routes})
    counts = run.routes.setdefault(arm.name, {})
    for each in routes:
        counts[each["route"]] = counts.get(each["route"], 0) + each["count"]


def write_line(raw: TextIO | None, content: dict[str, Any]) -> None:
    """One line of JSON, at once on its way to the disk."""
    if raw is not None:
        raw.write(json.dumps(content) + "\n")
        raw.flush()
