"""`octavo bench storage`: paged against dense storage of one model, and which of them its family's flag should name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from octavo.bench.decision import LEAST_ROUNDS, CellVerdict, candidate_wins, judge
from octavo.bench.paired_run import PairedRun, Start, run_paired, start_server, write_line
from octavo.bench.served_arm import Arm, ServedLoad, serving_arm
from octavo.bench.serving import Watcher
from octavo.bench.stamp import environment_stamp
from octavo.engine.loaded_model import ModelPlan
from octavo.errors import CapacityError, EngineFault, InvalidRequest
from octavo.step_batch import StorageKind

MOST_ROUNDS = 1000
Kind = Literal["paged", "dense"]


def check_rounds_asked(rounds: int) -> None:
    """Raises `InvalidRequest` for so few rounds that nothing could be concluded from them."""
    if not LEAST_ROUNDS <= rounds <= MOST_ROUNDS:
        raise InvalidRequest(f"rounds is {rounds}; it must be {LEAST_ROUNDS} to {MOST_ROUNDS}, or nothing is decided")


def plan_both(plan: Callable[[Kind], ModelPlan], load: ServedLoad) -> ModelPlan:
    """The plan of paged storage, once both are known to fit the load.

    Raises `CapacityError` or `InvalidRequest` that names the arm that does not.
    """
    plans: list[ModelPlan] = []
    for kind in ("paged", "dense"):
        try:
            found = plan(kind)
        except CapacityError as error:
            raise CapacityError(f"{kind}: {error}") from error
        if found.storage.kind.value != kind:
            raise InvalidRequest(f"{found.storage.reason}, so that there is nothing to decide")
        longest = max(load.prompt_tokens) + load.max_tokens
        if longest > found.ledger.max_context:
            raise InvalidRequest(
                f"{kind}: prompts of {max(load.prompt_tokens)} tokens with {load.max_tokens} new ones are {longest}, "
                f"and {found.ledger.max_context} fit; give shorter --prompt-tokens or more --kv-budget"
            )
        plans.append(found)
    return plans[0]


@dataclass(slots=True)
class StorageRun:
    """Grows while it is measured. `problem` says why nothing is decided; `verdicts` are empty as long as there is one.

    `settings` is a line of what the engine chose, `command` what would measure the same again.
    """

    model: str
    family: str
    device: str
    settings: str
    command: str
    paired: PairedRun
    environment: dict[str, object] = field(default_factory=environment_stamp)
    verdicts: tuple[CellVerdict, ...] = ()
    problem: str | None = "interrupted"

    @property
    def winner(self) -> StorageKind | None:
        """What the flag should name; None if nothing is decided."""
        if self.problem is not None:
            return None
        return StorageKind.DENSE if candidate_wins(self.verdicts) else StorageKind.PAGED

    @property
    def entry(self) -> str | None:
        """The line of `PREFERRED_STORAGE` to set."""
        winner = self.winner
        return None if winner is None else f'("{self.family}", "{self.device}"): StorageKind.{winner.name},'

    @property
    def reason(self) -> str:
        """Why, in one line."""
        if self.problem is not None:
            return self.problem
        dense = [each.cell for each in self.verdicts if each.faster == "candidate"]
        paged = [each.cell for each in self.verdicts if each.faster == "baseline"]
        told = [
            f"{name} is faster beyond the null spread in {_listed(cells)}"
            for name, cells in (("dense", dense), ("paged", paged))
            if cells or name == "dense"
        ]
        return ", and ".join(told)

    def head(self) -> dict[str, Any]:
        """All that is known before anything is measured."""
        return {
            "bench": "storage",
            "model": self.model,
            "family": self.family,
            "device": self.device,
            "settings": self.settings,
            "command": self.command,
            "environment": self.environment,
        }

    def outcome(self) -> dict[str, Any]:
        return {
            "complete": self.problem is None,
            "problem": self.problem,
            "preferred_storage": None if self.winner is None else self.winner.value,
            "entry": self.entry,
            "reason": self.reason,
            "cells": [each.as_object() for each in self.verdicts],
        }

    def as_object(self) -> dict[str, Any]:
        return {**self.head(), **self.outcome(), **self.paired.as_object()}


def storage_arms(model: Path, flags: Sequence[str], load: ServedLoad, rounds: int) -> PairedRun:
    """Servers that differ by `--storage` alone."""

    def arm(name: str, kind: Kind) -> Arm:
        return serving_arm(name, model, [f"--storage={kind}", *flags], storage=kind)

    return PairedRun(load, rounds, arm("paged", "paged"), arm("dense", "dense"), arm("paged again", "paged"))


def bench_storage(run: StorageRun, raw: TextIO | None, watch: Watcher, start: Start = start_server) -> None:
    """Fill `run`, and write every cell to `raw` as soon as it is done, the outcome last.

    Raises `EngineFault` where nothing can be decided: an arm cannot be started or dies, or a cell has too few rounds.
    """
    paired = run.paired
    check_rounds_asked(paired.rounds)
    paired.load.check()
    write_line(raw, {"type": "head", **run.head(), "load": paired.load.as_object(), "rounds": paired.rounds})
    try:
        run_paired(paired, raw, watch, start)
        rounds, lost = paired.paired(lambda figures: figures.output_tps)
        run.verdicts = judge(rounds, paired.rounds, lost)
        run.problem = None
    except EngineFault as error:
        run.problem = f"{error}; what was measured is kept, and no flag is decided"
        raise EngineFault(run.problem) from error
    finally:
        write_line(raw, {"type": "outcome", **run.outcome()})


def _listed(cells: Sequence[str]) -> str:
    return "; ".join(cells) if cells else "no cell"
