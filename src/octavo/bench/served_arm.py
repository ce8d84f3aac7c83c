"""One arm of one round: load on one server that was started for it, cell by cell. Compares nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from octavo.bench.load_cell import CellRun, Outcome, run_cell
from octavo.bench.load_connection import Address
from octavo.bench.load_endpoint import Endpoint, EndpointControl
from octavo.bench.load_mix import Mix, make_requests, plan_cell
from octavo.bench.load_prompts import PromptSource, prompt_source
from octavo.bench.serving import MAX_CONCURRENCY, Watcher, rotated
from octavo.bench.serving_figures import Limits, RoundFigures, output_tokens, round_figures
from octavo.bench.stamp import load_average
from octavo.errors import EngineFault, InvalidRequest

FAULT_WAIT_S = 5.0  # in which a server whose engine has failed ends
_NO_LIMITS = Limits(float("inf"), float("inf"))


class Server(Protocol):
    """A server that runs: where it is, and why it has ended (None while it has not)."""

    url: str

    def fault(self, within_s: float = 0.0) -> EngineFault | None: ...


@dataclass(frozen=True, slots=True)
class Arm:
    """How a server of this arm is started. `shown` says it without what is of this machine alone; `storage` is what
    the server must say that it uses, if that matters.
    """

    name: str
    command: tuple[str, ...]
    shown: str
    environment: Mapping[str, str] = field(default_factory=dict)
    storage: str | None = None


def serving_arm(
    name: str,
    model: Path,
    flags: Sequence[str],
    environment: Mapping[str, str] | None = None,
    storage: str | None = None,
) -> Arm:
    """`octavo serve` of `model` on a free port of this machine; it ends if its engine fails."""
    address = ("--host=127.0.0.1", "--port=0", "--log-level=info", "--exit-on-failure")
    command = (sys.executable, "-P", "-m", "octavo", "serve", f"--model={model}", *address, *flags)
    return Arm(name, command, shlex.join(["octavo", "serve", "-m", model.name, *flags]), environment or {}, storage)


@dataclass(frozen=True, slots=True)
class ServedCell:
    """So many clients, each with prompts of so many tokens."""

    prompt_tokens: int
    concurrency: int

    @property
    def name(self) -> str:
        return f"prompt {self.prompt_tokens}, {self.concurrency} client{'s'[: self.concurrency > 1]}"


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """What every arm is asked, the same in each: every length with every number of clients is a cell."""

    prompt_tokens: tuple[int, ...]
    concurrencies: tuple[int, ...]
    max_tokens: int
    requests_per_client: int
    seed: int
    timeout_s: float

    def check(self) -> None:
        """Raises `InvalidRequest` for values that cannot be."""
        for name, value, least, most in (
            *(("prompt tokens", each, 1, 1 << 24) for each in self.prompt_tokens),
            *(("concurrency", each, 1, MAX_CONCURRENCY) for each in self.concurrencies),
            ("max tokens", self.max_tokens, 1, 1 << 24),
            ("requests", self.requests_per_client, 1, 10_000),
            ("timeout", self.timeout_s, 1, 86_400),
        ):
            if not least <= value <= most:
                raise InvalidRequest(f"{name} is {value}; it must be {least} to {most}")
        for name, values in (("prompt lengths", self.prompt_tokens), ("concurrencies", self.concurrencies)):
            if not values or len(set(values)) != len(values):
                raise InvalidRequest(f"the {name} are {', '.join(map(str, values))}; name each only once")

    @property
    def cells(self) -> tuple[ServedCell, ...]:
        return tuple(ServedCell(tokens, clients) for tokens in self.prompt_tokens for clients in self.concurrencies)

    @property
    def num_requests(self) -> int:
        """Of one arm in one round, its warm-up included."""
        per_length = sum(self.concurrencies) * self.requests_per_client
        return len(self.prompt_tokens) * per_length + max(self.concurrencies) + 1

    def as_object(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ArmCell:
    """One cell of one arm in one round. `problem` says why it does not count; None if it does."""

    arm: str
    round: int
    position: int  # of the arm in the round, from 1
    cell: ServedCell
    figures: RoundFigures
    load_average: float | None  # before the cell
    problem: str | None

    def as_object(self) -> dict[str, object]:
        return {
            "arm": self.arm,
            "round": self.round,
            "position": self.position,
            "prompt_tokens": self.cell.prompt_tokens,
            "concurrency": self.cell.concurrency,
            "problem": self.problem,
            "load_average": self.load_average,
            "figures": self.figures.as_object(),
        }


@dataclass(frozen=True, slots=True)
class ArmPlace:
    """Where in the measurement an arm runs: round and position, both from 0, of so many rounds."""

    round: int
    position: int
    rounds: int

    def label(self, arm: Arm) -> str:
        return f"round {self.round + 1} of {self.rounds}, {arm.name}"


async def measure_arm(
    arm: Arm,
    server: Server,
    load: ServedLoad,
    place: ArmPlace,
    keep: Callable[[ArmCell, CellRun], None],
    watch: Watcher,
) -> list[dict[str, Any]]:
    """Warm up and measure every cell, in an order that the round rotates; `keep` gets each as soon as it is done.

    Returns the counts of attention's routes. Raises `EngineFault` if the server ends or uses another storage than the
    arm's, `InvalidRequest` or `CapacityError` if it cannot be measured.
    """
    async with EndpointControl(Address.of(server.url), None, load.timeout_s) as control:
        endpoint = await control.find(None, "completions")
        source = await prompt_source(control, endpoint, None, load.prompt_tokens)
        measurement = _Measurement(arm, server, load, place, control, endpoint, source, watch)
        await measurement.warm_up()
        for cell in rotated(load.cells, place.round):
            await measurement.cell(cell, keep)
        return await measurement.routes()


@dataclass(frozen=True, slots=True)
class _Measurement:
    arm: Arm
    server: Server
    load: ServedLoad
    place: ArmPlace
    control: EndpointControl
    endpoint: Endpoint
    source: PromptSource
    watch: Watcher

    async def warm_up(self) -> None:
        """As many clients as there will ever be, with the shortest prompts; then one of the longest."""
        self.watch.cell(f"{self.place.label(self.arm)}, warm-up")
        shortest, longest = min(self.load.prompt_tokens), max(self.load.prompt_tokens)
        for cell in (ServedCell(shortest, max(self.load.concurrencies)), ServedCell(longest, 1)):
            done = await self._run(cell, "warm-up", cell.concurrency)
            self._check_alive(done, f"warm-up, {cell.name}")
            errors = [each.error for each in done.outcomes if each.error is not None]
            if len(errors) == len(done.outcomes):
                raise EngineFault(f"warm-up, {cell.name}: every request failed: {errors[0]}")

    async def cell(self, cell: ServedCell, keep: Callable[[ArmCell, CellRun], None]) -> None:
        self.watch.cell(f"{self.place.label(self.arm)}, {cell.name}")
        busy = load_average()
        done = await self._run(cell, f"round {self.place.round}", cell.concurrency * self.load.requests_per_client)
        figures = round_figures(cell.concurrency, self.place.round + 1, done, _NO_LIMITS)
        place = self.place.round + 1, self.place.position + 1
        keep(ArmCell(self.arm.name, *place, cell, figures, busy, _problem(done, self.load.max_tokens)), done)
        self._check_alive(done, cell.name)

    async def routes(self) -> list[dict[str, Any]]:
        """Counts of attention's routes; checks the storage."""
        found = await self.control.routes()
        if self.arm.storage is not None and found["storage"] != self.arm.storage:
            raise EngineFault(f"its storage is {found['storage']}, not {self.arm.storage}")
        routes: list[dict[str, Any]] = found["routes"]
        return routes

    async def _run(self, cell: ServedCell, name: str, num_requests: int) -> CellRun:
        """The same prompts in every arm of a round, and no prompt twice in one server."""
        mix = Mix("plain", cell.prompt_tokens, self.load.max_tokens)
        plans = plan_cell(mix, self.load.seed, cell.concurrency, num_requests)
        requests = make_requests(plans, self.endpoint, self.source, f"{self.load.seed} {name} {cell.name}")
        return await run_cell(self.control.connection, requests, cell.concurrency, self.watch.answer)

    def _check_alive(self, done: CellRun, where: str) -> None:
        """Raises `EngineFault` if requests failed because the server has ended, or is about to."""
        failed = next((each.error for each in done.outcomes if each.error is not None), None)
        if failed is not None and (fault := self.server.fault(FAULT_WAIT_S)) is not None:
            raise EngineFault(f"the server died in {where}: {fault}")


def _problem(done: CellRun, max_tokens: int) -> str | None:
    """Why a cell cannot be compared: a request that failed, or an answer of another length."""
    failed = [each.error for each in done.outcomes if each.error is not None]
    if failed:
        return f"{len(failed)} of {len(done.outcomes)} requests failed: {failed[0]}"
    short = [tokens for each in done.outcomes if (tokens := output_tokens(each)) != max_tokens]
    return (
        f"{len(short)} of {len(done.outcomes)} answers have not {max_tokens} tokens, but {short[0]}" if short else None
    )


def request_lines(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """The requests of a cell, short enough to be kept with the code: seconds from the beginning of the cell."""
    return [
        {
            "result": each.result,
            "started_s": round(each.started_s, 4),
            "first_s": round(each.started_s + each.arrivals_s[0], 4) if each.arrivals_s else None,
            "ended_s": round(each.ended_s, 4),
            "output_tokens": output_tokens(each),
            "error": each.error,
        }
        for each in outcomes
    ]
