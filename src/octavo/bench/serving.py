"""`octavo bench serving`: rounds of cells against one OpenAI-compatible endpoint, kept as they are measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeVar

from octavo.bench.load_cell import CellRun, run_cell
from octavo.bench.load_connection import Address, LoadConnection
from octavo.bench.load_endpoint import Api, Endpoint, EndpointControl
from octavo.bench.load_mix import Mix, make_requests, plan_cell, prompt_lengths
from octavo.bench.load_prompts import PromptSource, prompt_source
from octavo.bench.serving_figures import CellSummary, Limits, RoundFigures, round_figures, summarise
from octavo.bench.stamp import environment_stamp
from octavo.errors import EngineFault, InvalidRequest
from octavo.tokenizer import Tokenizer

LEAST_ROUNDS = 3  # good rounds without which a cell is not reported, unless fewer were asked for
T = TypeVar("T")
MAX_CONCURRENCY = 1000  # open connections; the usual limit of open files is 1,024


@dataclass(frozen=True, slots=True)
class ServingProtocol:
    """Everything that was asked for. `requests_per_client` is per cell and round; the seed draws lengths and words."""

    url: str
    concurrencies: tuple[int, ...]
    mix: Mix
    rounds: int
    requests_per_client: int
    limits: Limits
    seed: int
    timeout_s: float
    model: str | None = None
    api: Api | None = None

    def check(self) -> None:
        """Raises `InvalidRequest` for values that cannot be."""
        mix = self.mix
        for name, value, least, most in (
            ("prompt tokens", mix.prompt_tokens, 1, 1 << 24),
            ("max tokens", mix.max_tokens, 2 if mix.name == "cancel" else 1, 1 << 24),
            ("shared percent", mix.shared_percent, 0, 100),
            ("cancel percent", mix.cancel_percent, 0, 100),
            ("rounds", self.rounds, 1, 10_000),
            ("requests", self.requests_per_client, 1, 10_000),
            ("timeout", self.timeout_s, 1, 86_400),
            *(("concurrency", each, 1, MAX_CONCURRENCY) for each in self.concurrencies),
        ):
            if not least <= value <= most:
                raise InvalidRequest(f"{name} is {value}; it must be {least} to {most}")
        if len(set(self.concurrencies)) != len(self.concurrencies):
            listed = ", ".join(map(str, self.concurrencies))
            raise InvalidRequest(f"the concurrencies are {listed}; name each only once")
        if self.limits.ttft_s <= 0 or self.limits.itl_s <= 0:
            raise InvalidRequest("a limit for goodput is not above 0; give --slo-ttft and --slo-itl in milliseconds")

    def as_object(self) -> dict[str, object]:
        return {
            "concurrency": list(self.concurrencies),
            "mix": self.mix.as_object(),
            "rounds": self.rounds,
            "requests_per_client": self.requests_per_client,
            "slo": {"ttft_s": self.limits.ttft_s, "itl_s": self.limits.itl_s},
            "seed": self.seed,
            "timeout_s": self.timeout_s,
        }


@dataclass(slots=True)
class ServingRun:
    """Grows while it is measured, so that what ends it loses nothing. `problem` says why it is not complete."""

    protocol: ServingProtocol
    environment: dict[str, object] = field(default_factory=environment_stamp)
    endpoint: Endpoint | None = None
    prompts: str | None = None
    rounds: list[RoundFigures] = field(default_factory=list)
    problem: str | None = "interrupted"

    @property
    def cells(self) -> list[CellSummary]:
        return summarise(self.rounds)

    def as_object(self) -> dict[str, Any]:
        return {
            "bench": "serving",
            "complete": self.problem is None,
            "problem": self.problem,
            "environment": self.environment,
            "endpoint": None if self.endpoint is None else self.endpoint.as_object(),
            "prompts": self.prompts,
            "protocol": self.protocol.as_object(),
            "cells": [each.as_object() for each in self.cells],
            "rounds": [each.as_object() for each in self.rounds],
        }


@dataclass(frozen=True, slots=True)
class Watcher:
    """What is told while it runs: `begin` with the number of requests in all and a line, `answer` for each one."""

    begin: Callable[[str, int], None] = lambda label, total: None
    cell: Callable[[str], None] = lambda label: None
    answer: Callable[[], None] = lambda: None


async def bench_serving(
    run: ServingRun,
    *,
    api_key: str | None = None,
    tokenizer: Tokenizer | None = None,
    raw: TextIO | None = None,
    watcher: Watcher | None = None,
) -> None:
    """Fill `run`. Every request's outcome also goes to `raw`, a JSON line each, as soon as its cell is done.

    Raises `InvalidRequest` or `CapacityError` if the endpoint cannot be measured at all, and `EngineFault` if it dies
    or a cell has too few good rounds: then `run.problem` is set and `run.rounds` holds what was measured.
    """
    watch = watcher or Watcher()
    protocol = run.protocol
    protocol.check()
    async with EndpointControl(Address.of(protocol.url), api_key, protocol.timeout_s) as control:
        endpoint = run.endpoint = await control.find(protocol.model, protocol.api)
        lengths = prompt_lengths(protocol.mix, protocol.seed, protocol.concurrencies, protocol.requests_per_client)
        source = await prompt_source(control, endpoint, tokenizer, lengths)
        run.prompts = source.how
        measurement = _Measurement(run, control, endpoint, source, raw, watch)
        try:
            await measurement.warm_up()
            for round_ in range(protocol.rounds):
                for concurrency in rotated(protocol.concurrencies, round_):
                    await measurement.cell(concurrency, round_)
            check_rounds(run.rounds, protocol.concurrencies, protocol.rounds)
        except EngineFault as error:
            run.problem = str(error)
            raise
    run.problem = None


def rotated(cells: Sequence[T], round_: int) -> tuple[T, ...]:
    """The order of round `round_` (from 0): each cell comes first, second, … equally often."""
    shift = round_ % len(cells)
    return (*cells[shift:], *cells[:shift])


def check_rounds(rounds: Sequence[RoundFigures], concurrencies: Sequence[int], asked: int) -> None:
    """Raises `EngineFault` that names each cell with too few good rounds, and why its others are not good."""
    least = min(LEAST_ROUNDS, asked)
    problems = []
    for concurrency in concurrencies:
        cell = [each for each in rounds if each.concurrency == concurrency]
        good = sum(each.good for each in cell)
        if good < least:
            reasons = Counter(error for each in cell for error in each.errors)
            why = reasons.most_common(1)[0][0] if reasons else "no request was answered in full"
            problems.append(f"concurrency {concurrency} has {good} good rounds of {asked} ({why})")
    if problems:
        raise EngineFault(f"too few rounds: {'; '.join(problems)}; at least {least} are needed, nothing is concluded")


@dataclass(frozen=True, slots=True)
class _Measurement:
    run: ServingRun
    control: EndpointControl
    endpoint: Endpoint
    source: PromptSource
    raw: TextIO | None
    watch: Watcher

    async def warm_up(self) -> None:
        """One unrecorded pass at the highest concurrency, with prompts of its own."""
        most = max(self.run.protocol.concurrencies)
        self.watch.begin("warm-up", most + self._num_requests() * self.run.protocol.rounds)
        self.watch.cell(f"warm-up, concurrency {most}")
        done = await self._run(most, "warm-up", most)
        errors = [each.error for each in done.outcomes if each.error is not None]
        if len(errors) == len(done.outcomes):
            raise EngineFault(f"warm-up at concurrency {most}: every request failed: {errors[0]}")

    async def cell(self, concurrency: int, round_: int) -> None:
        """Measure and keep one cell. Raises `EngineFault` if the endpoint died in it."""
        arm = f"round {round_ + 1} of {self.run.protocol.rounds}, concurrency {concurrency}"
        self.watch.cell(arm)
        done = await self._run(concurrency, f"round {round_}", concurrency * self.run.protocol.requests_per_client)
        self.run.rounds.append(round_figures(concurrency, round_ + 1, done, self.run.protocol.limits))
        if self.raw is not None:
            for outcome in done.outcomes:
                line = {"concurrency": concurrency, "round": round_ + 1, **outcome.as_object()}
                self.raw.write(json.dumps(line) + "\n")
            self.raw.flush()
        lost = next((each.error for each in done.outcomes if each.unreachable), None)
        if lost is not None and not await self.control.alive():
            raise EngineFault(f"the endpoint died in {arm}: {lost}; its earlier rounds are kept, nothing is concluded")

    async def _run(self, concurrency: int, name: str, num_requests: int) -> CellRun:
        protocol = self.run.protocol
        plans = plan_cell(protocol.mix, protocol.seed, concurrency, num_requests)
        requests = make_requests(plans, self.endpoint, self.source, f"{protocol.seed} {name} {concurrency}")
        return await run_cell(self._connect, requests, concurrency, self.watch.answer)

    def _connect(self) -> LoadConnection:
        return self.control.connection()

    def _num_requests(self) -> int:
        return sum(self.run.protocol.concurrencies) * self.run.protocol.requests_per_client
