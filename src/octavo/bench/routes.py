"""Decode by the fused kernels beside decode by gathering, round by round, in the engine or through servers.

Prints nothing. The two arms differ by the kill switch alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Literal

import torch

from octavo.bench.engine_decode import EngineDecode
from octavo.bench.kernel_loads import DecodeLoad
from octavo.bench.outcome import Outcome
from octavo.bench.percentiles import Spread
from octavo.bench.served_decode import ServedDecode
from octavo.bench.stamp import device_line, environment_stamp, versions_line
from octavo.config import EngineConfig
from octavo.engine.loaded_model import LoadedModel
from octavo.errors import EngineFault, InvalidRequest
from octavo.parity.server_process import ServedProcess
from octavo.storage.route import RouteSwitches

Through = Literal["engine", "server"]
SWITCHES = {"fused": RouteSwitches(), "gather": RouteSwitches(native=False)}
_ENVIRONMENTS = {"fused": {"OCTAVO_PAGED_ATTENTION_NATIVE": ""}, "gather": {"OCTAVO_PAGED_ATTENTION_NATIVE": "0"}}
_WARM_UP = 8
_CHUNK = 4096  # prompt tokens a step

Decode = Callable[[DecodeLoad, int], float]  # tokens/s of all sequences of a load, for so many new tokens each


@dataclass(frozen=True, slots=True)
class RouteCell:
    """One load: tokens/s by arm and round. What a round gave to one arm stands beside what it gave to the other."""

    load: DecodeLoad
    speeds: dict[str, list[float]]

    def spread(self, arm: str) -> Spread:
        return Spread.of(self.speeds[arm])

    @property
    def ratio(self) -> Spread:
        """Fused over gather, of each round."""
        return Spread.of([a / b for a, b in zip(self.speeds["fused"], self.speeds["gather"], strict=True)])


@dataclass
class RouteRun:
    """What is measured, and the cells so far."""

    model: str
    through: Through
    loads: Sequence[DecodeLoad]
    new_tokens: int
    rounds: int
    config: EngineConfig
    cells: list[RouteCell] = field(default_factory=list)
    environment: dict[str, object] = field(default_factory=environment_stamp)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(SWITCHES)

    def as_object(self) -> dict[str, object]:
        """With one flat record for each cell."""
        return {
            **self.outcome.as_object(),
            "model": self.model,
            "environment": self.environment,
            "new_tokens": self.new_tokens,
            "rounds": self.rounds,
            "cells": [
                {
                    "shape": self.model,
                    "load": cell.load.name,
                    "through": self.through,
                    "tokens_per_s": {name: asdict(cell.spread(name)) for name in self.arms},
                    "fused_over_gather": asdict(cell.ratio),
                    "commit": self.environment["commit"],
                }
                for cell in self.cells
            ],
        }


def through_of(name: str) -> Through:
    """Raises `InvalidRequest`."""
    match name:
        case "engine":
            return "engine"
        case "server":
            return "server"
    raise InvalidRequest(f"through is {name!r}; it is engine or server")


def cell_line(cell: RouteCell) -> str:
    """A cell in a line."""
    speeds = ", ".join(f"{name} {cell.spread(name)}" for name in cell.speeds)
    return f"{cell.load.name:>10}   {speeds} tokens/s; {cell.ratio}"


def report_lines(run: RouteRun) -> Iterator[str]:
    """A Markdown table."""
    yield from run.outcome.lines()
    yield (
        f"{run.model}, random weights, {run.new_tokens} new tokens through the {run.through}; "
        f"{device_line(run.environment)}; {versions_line(run.environment)}"
    )
    yield ""
    yield f"Tokens/s of all clients, median of {run.rounds} (least to most):"
    yield ""
    yield "| " + " | ".join(["load", *run.arms, "fused ÷ gather"]) + " |"
    yield "|" + "---|" * (len(run.arms) + 2)
    for cell in run.cells:
        yield f"| {cell.load.name} | " + " | ".join(str(cell.spread(name)) for name in run.arms) + f" | {cell.ratio} |"


def bench_in_engine(run: RouteRun, loaded: LoadedModel, progress: Callable[[RouteCell], None]) -> None:
    """Measure every load by two engines over the same weights.

    Raises `EngineFault` if an arm took the other's route: `run` then is not complete, and nothing is concluded.
    """
    _note_device(run, loaded.plan.device)
    with run.outcome as outcome:
        for load in run.loads:
            outcome.where = load.name
            engines = {
                name: EngineDecode(loaded, load, run.config, run.new_tokens, switches)
                for name, switches in SWITCHES.items()
            }

            def decode(name: str, new_tokens: int, engines: Mapping[str, EngineDecode] = engines) -> float:
                tokens, _, seconds = engines[name].run(new_tokens)
                return tokens / seconds

            _measure(run, load, decode, progress)
            _check_routes({name: engine.core.runner.cache.routes.by_route() for name, engine in engines.items()})


def bench_through_servers(
    run: RouteRun, command: Callable[[EngineConfig], Sequence[str]], progress: Callable[[RouteCell], None]
) -> None:
    """Measure every load on two servers, each of which holds all loads' K/V; both run all the time, one is asked.

    `command` starts one. Raises `EngineFault` if one ends or took the other's route: `run` then is not complete.
    """
    if torch.cuda.is_available() and run.config.device != "cpu":
        _note_device(run, torch.device("cuda"))
    words = command(served_config(run))
    with run.outcome as outcome, ExitStack() as stack:
        outcome.where = "start"
        servers = {
            name: ServedDecode(stack.enter_context(ServedProcess(words, environment)).url)
            for name, environment in _ENVIRONMENTS.items()
        }
        for load in run.loads:

            def decode(name: str, new_tokens: int, load: DecodeLoad = load) -> float:
                return servers[name].decode(load, new_tokens)

            for fewer, name in product(fewer_clients(load), servers):
                outcome.where = f"{load.name}, warm-up with fewer clients, {name}"
                for _ in range(2):
                    servers[name].decode(fewer, _WARM_UP)
            _measure(run, load, decode, progress)
        outcome.where = "routes"
        _check_routes({name: server.routes() for name, server in servers.items()})


def fewer_clients(load: DecodeLoad) -> list[DecodeLoad]:
    """1, 2, 4, … of the load's: clients do not begin at once, and a server records each size of step by itself."""
    most = len(load.lengths)
    return [
        DecodeLoad(load.name, load.lengths[: 1 << power]) for power in range(most.bit_length()) if 1 << power < most
    ]


def served_config(run: RouteRun) -> EngineConfig:
    """Of a server that holds the K/V of all loads at once."""
    size = run.config.block_size
    longest = [max(load.lengths) + run.new_tokens for load in run.loads]
    blocks = sum(-(-(length + run.new_tokens) // size) + 2 for load in run.loads for length in load.lengths)
    return replace(
        run.config,
        storage="paged",
        max_context=max(longest) + 1,
        max_num_seqs=max(len(load.lengths) for load in run.loads),
        num_kv_blocks=blocks,
        prefill_chunk=_CHUNK,
        max_batch_tokens=2 * _CHUNK,
    )


def random_server(directory: Path) -> Callable[[EngineConfig], list[str]]:
    """Starts a server of random weights of the shape that `directory`'s config.json says."""

    def command(config: EngineConfig) -> list[str]:
        settings = {each.name: getattr(config, each.name) for each in fields(config)}
        return [sys.executable, "-P", "-m", "octavo.bench.random_server", str(directory), json.dumps(settings)]

    return command


def _measure(
    run: RouteRun, load: DecodeLoad, decode: Callable[[str, int], float], progress: Callable[[RouteCell], None]
) -> None:
    names = list(SWITCHES)
    for name in names:
        run.outcome.where = f"{load.name}, warm-up, {name}"
        for _ in range(2):  # prompts are computed and kernels compiled, then graphs recorded
            decode(name, _WARM_UP)
    cell = RouteCell(load, {name: [] for name in names})
    for round_ in range(run.rounds):
        for name in names if round_ % 2 == 0 else reversed(names):
            run.outcome.where = f"{load.name}, round {round_ + 1} of {run.rounds}, {name}"
            cell.speeds[name].append(decode(name, run.new_tokens))
    run.outcome.where = load.name
    run.cells.append(cell)
    progress(cell)


def _check_routes(routes: Mapping[str, Mapping[str, int]]) -> None:
    for arm, other in (("fused", "gather"), ("gather", "fused_decode")):
        if routes[arm].get(other):
            raise EngineFault(f"the {arm} arm took {other} {routes[arm][other]} times; the two cannot be compared")


def _note_device(run: RouteRun, device: torch.device) -> None:
    if device.type == "cuda":
        run.environment |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
