"""What `--exact` costs a decode step: both by turns over random weights, in one process. Prints nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from octavo.bench.engine_decode import EngineDecode, load_random
from octavo.bench.kernel_loads import DecodeLoad
from octavo.bench.outcome import Outcome
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import device_line, environment_stamp, versions_line
from octavo.config import EngineConfig
from octavo.engine.loaded_model import LoadedModel

TURNS = ("without", "with", "without", "with")


@dataclass(frozen=True, slots=True)
class ExactCell:
    """One load: milliseconds a step, of every round of every one of `TURNS`, each by an engine of its own."""

    load: DecodeLoad
    step_ms: tuple[tuple[float, ...], ...]

    def spread(self, name: str) -> Spread:
        """Of both turns."""
        return Spread.of(
            [each for turn, rounds in zip(TURNS, self.step_ms, strict=True) if turn == name for each in rounds]
        )

    @property
    def cost(self) -> float:
        """How much longer a step takes with `--exact`, in percent."""
        return _percent(self.spread("with").median, self.spread("without").median)

    def null(self, name: str) -> float:
        """How much longer the same takes in its second turn than in its first, in percent: what chance does."""
        first, second = (Spread.of(rounds) for turn, rounds in zip(TURNS, self.step_ms, strict=True) if turn == name)
        return _percent(second.median, first.median)

    def as_object(self) -> dict[str, object]:
        names = sorted(set(TURNS))
        return {
            "load": self.load.name,
            "step_ms": {name: self.spread(name).as_object() for name in names},
            "cost_percent": round(self.cost, 2),
            "null_percent": {name: round(self.null(name), 2) for name in names},
            "step_ms_by_turn": [[round(each, 4) for each in rounds] for rounds in self.step_ms],
        }


def _percent(value: float, base: float) -> float:
    return 100 * (value / base - 1)


@dataclass
class ExactCostRun:
    """What is measured, and the cells so far."""

    directory: Path
    loads: Sequence[DecodeLoad]
    new_tokens: int
    rounds: int
    config: EngineConfig
    cells: list[ExactCell] = field(default_factory=list)
    environment: dict[str, object] = field(default_factory=environment_stamp)
    outcome: Outcome = field(default_factory=Outcome)

    def as_object(self) -> dict[str, object]:
        """With one flat record for each cell."""
        return {
            "bench": "exact_cost",
            **self.outcome.as_object(),
            "model": self.directory.name,
            "environment": self.environment,
            "new_tokens": self.new_tokens,
            "rounds": self.rounds,
            "turns": list(TURNS),
            "cells": [
                {"shape": self.directory.name, **cell.as_object(), "commit": self.environment["commit"]}
                for cell in self.cells
            ],
        }

    def charts(self) -> dict[str, dict[str, Spread]]:
        """The figures by unit and load."""
        return {f"ms a step, {name}": {cell.load.name: cell.spread(name) for cell in self.cells} for name in TURNS[:2]}


def bench_exact_cost(run: ExactCostRun, progress: Callable[[ExactCell], None]) -> None:
    """Measure every load of `run` by turns. Both models are in memory all the time.

    Raises `InvalidRequest` where exact results cannot be had.
    """
    with run.outcome as outcome:
        paged = replace(run.config, storage="paged")  # as the engines will be
        configs = {"without": replace(paged, exact=False), "with": replace(paged, exact=True)}
        loaded = {name: load_random(run.directory, config) for name, config in configs.items()}
        if loaded["with"].plan.device.type == "cuda":
            run.environment |= {"device": torch.cuda.get_device_name()}
        for load in run.loads:
            turns = []
            for number, name in enumerate(TURNS):
                outcome.where = f"{load.name}, turn {number + 1} of {len(TURNS)}, {name} --exact"
                turns.append(_turn(run, loaded[name], load, configs[name]))
            cell = ExactCell(load, tuple(turns))
            run.cells.append(cell)
            progress(cell)


def _turn(run: ExactCostRun, loaded: LoadedModel, load: DecodeLoad, config: EngineConfig) -> tuple[float, ...]:
    gc.collect()  # the engine of the turn before, with its K/V and graphs
    engine = EngineDecode(loaded, load, config, run.new_tokens)
    engine.warm_up()
    return tuple(seconds / steps * 1e3 for _, steps, seconds in (engine.run(run.new_tokens) for _ in range(run.rounds)))


def cell_line(cell: ExactCell) -> str:
    """A cell in a line."""
    told = ", ".join(f"{name} {cell.spread(name)} ms" for name in TURNS[:2])
    return f"{cell.load.name:>10}   {told}; costs {cell.cost:+.1f} %"


def report_lines(run: ExactCostRun) -> Iterator[str]:
    """A Markdown table."""
    yield from run.outcome.lines()
    yield f"{run.directory.name}, random weights; {device_line(run.environment)}"
    yield versions_line(run.environment)
    yield ""
    yield f"Milliseconds a decode step with and without `--exact`, median of 2 times {run.rounds} (least to most):"
    yield ""
    yield "| load | without | with | cost | without, second against first | with, second against first |"
    yield "|---|---|---|---|---|---|"
    for cell in run.cells:
        spreads = " | ".join(str(cell.spread(name)) for name in TURNS[:2])
        nulls = " | ".join(f"{cell.null(name):+.1f} %" for name in TURNS[:2])
        yield f"| {cell.load.name} | {spreads} | {cell.cost:+.1f} % | {nulls} |"
