"""`octavo bench regress`: a saved protocol measured anew, its commit's code in turn with the code of now.

Figures of another run are never compared: what was saved is shown beside, and judged are both codes in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from octavo.bench.decision import CellVerdict, PairedRound, judge
from octavo.bench.outcome import Outcome
from octavo.bench.paired_run import PairedRun, Start, run_arms, run_paired, start_server, write_line
from octavo.bench.percentiles import Spread
from octavo.bench.saved_protocol import SavedProtocol, model_digest
from octavo.bench.served_arm import ServedLoad, serving_arm
from octavo.bench.serving import Watcher
from octavo.bench.serving_figures import RoundFigures
from octavo.bench.stamp import environment_stamp
from octavo.errors import EngineFault, InvalidRequest

THEN, NOW, AGAIN = "saved commit", "now", "saved commit again"


def first_tokens_ps(figures: RoundFigures) -> float:
    """How often the median request's wait for its first token goes into a second: more is better."""
    assert figures.ttft_s is not None, "an answer without a token"
    return 1 / figures.ttft_s.p50


# What is compared of every cell; of each, more is better.
FIGURES: Mapping[str, Callable[[RoundFigures], float]] = {
    "output tokens/s": lambda figures: figures.output_tps,
    "1 / time to first token": first_tokens_ps,
}


def regress_arms(
    model: Path, flags: tuple[str, ...], load: ServedLoad, rounds: int, old: Mapping[str, str] | None = None
) -> PairedRun:
    """The same server by two codes; `old` is the environment under which the saved commit's is imported."""
    then, now, again = (serving_arm(name, model, flags, env) for name, env in ((THEN, old), (NOW, None), (AGAIN, old)))
    return PairedRun(load, rounds, then, now, again)


def save_protocol(
    path: Path,
    paired: PairedRun,
    model: Path,
    flags: tuple[str, ...],
    commit: str,
    raw: TextIO | None,
    watch: Watcher,
    start: Start = start_server,
) -> SavedProtocol:
    """Measure the code of now alone, and write the protocol with what it gave to a new file `path`.

    Every cell goes to `raw` as soon as it is done, the outcome last. Raises `EngineFault` if the server cannot be
    started or dies, or a cell of a round failed: then no protocol is written.
    """
    environment, outcome = environment_stamp(), Outcome()
    head = {"type": "head", "environment": environment, "commit": commit, "model": model.name, "flags": list(flags)}
    write_line(raw, {**head, "load": paired.load.as_object(), "rounds": paired.rounds})
    try:
        with outcome:
            run_arms(paired, [paired.candidate], raw, watch, start)
            for each in paired.cells:
                if each.problem is not None:
                    raise EngineFault(f"{each.cell.name}, round {each.round}: {each.problem}; nothing is saved")
    finally:
        write_line(raw, {"type": "outcome", **outcome.as_object()})
    figures = {
        f"{cell.name}: {name}": Spread.of([figure(each.figures) for each in paired.cells if each.cell == cell])
        for cell in paired.load.cells
        for name, figure in FIGURES.items()
    }
    saved = SavedProtocol(
        model.name, model_digest(model), flags, paired.load, paired.rounds, commit, environment, figures
    )
    saved.write(path)
    return saved


def check_model(saved: SavedProtocol, model: Path) -> None:
    """Raises `InvalidRequest` for another model than the protocol's: the two would not be comparable."""
    if model_digest(model) != saved.model_digest:
        raise InvalidRequest(
            f"{model.name} is not the model {saved.model} that the protocol was saved with, its contents differ; "
            "give that one with -m, or save a protocol for this one"
        )


@dataclass(slots=True)
class RegressRun:
    """Grows while it is measured. `problem` says why nothing is concluded."""

    saved: SavedProtocol
    paired: PairedRun
    environment: dict[str, object] = field(default_factory=environment_stamp)
    verdicts: tuple[CellVerdict, ...] = ()
    problem: str | None = "interrupted"

    @property
    def slower(self) -> tuple[CellVerdict, ...]:
        """Where the code of now is slower beyond the null spread."""
        return tuple(each for each in self.verdicts if each.faster == "baseline")

    @property
    def same_machine(self) -> bool:
        """Whether the saved figures are at least of such a machine with such software, though of another run."""
        return all(self.saved.environment.get(name) == self.environment[name] for name in ("machine", "versions"))

    def outcome(self) -> dict[str, Any]:
        return {
            "complete": self.problem is None,
            "problem": self.problem,
            "slower": [each.cell for each in self.slower],
            "cells": [each.as_object() for each in self.verdicts],
        }

    def as_object(self) -> dict[str, Any]:
        return {
            "bench": "regress",
            "environment": self.environment,
            "saved": self.saved.as_object(),
            "saved_on_same_machine": self.same_machine,
            **self.outcome(),
            **self.paired.as_object(),
        }


def bench_regress(run: RegressRun, raw: TextIO | None, watch: Watcher, start: Start = start_server) -> None:
    """Fill `run`, and write every cell to `raw` as soon as it is done, the outcome last.

    Raises `EngineFault` where nothing can be concluded: an arm cannot be started or dies, or a cell has too few rounds.
    """
    paired = run.paired
    write_line(raw, {"type": "head", "environment": run.environment, "saved": run.saved.as_object()})
    try:
        run_paired(paired, raw, watch, start)
        cells: dict[str, list[PairedRound]] = {}
        lost: dict[str, list[str]] = {}
        for name, figure in FIGURES.items():
            rounds, missing = paired.paired(figure)
            cells |= {f"{cell}: {name}": found for cell, found in rounds.items()}
            lost |= {f"{cell}: {name}": found for cell, found in missing.items()}
        run.verdicts = judge(cells, paired.rounds, lost)
        run.problem = None
    except EngineFault as error:
        run.problem = f"{error}; what was measured is kept"
        raise EngineFault(run.problem) from error
    finally:
        write_line(raw, {"type": "outcome", **run.outcome()})
