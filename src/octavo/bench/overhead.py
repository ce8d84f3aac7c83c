"""`octavo bench overhead`: what our server adds to our engine, over a model whose step takes a known time.

Each process is apart: the engine alone, the web process with its engine process, and the clients, which are this one.
They share the machine's cores, so that each one's processor time is told beside the wall time.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from octavo.bench.child_process import ChildProcess, check_proc, children_of, cpu_seconds
from octavo.bench.load_cell import CellRun, run_cell
from octavo.bench.load_connection import Address
from octavo.bench.load_endpoint import Endpoint, EndpointControl
from octavo.bench.load_mix import Mix, make_requests, plan_cell
from octavo.bench.load_prompts import TokenIdPrompts
from octavo.bench.outcome import Outcome
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp
from octavo.bench.viewer import watching
from octavo.errors import EngineFault, InvalidRequest

CHILD = "octavo.bench.overhead_child"
MODEL = "mock"
READY_TIMEOUT_S = 120
FIRST_TOKENS = 20  # requests, one after the other, whose first token is timed per round
_MOCK_IDS = range(3, 256)  # ordinary tokens of the mock model's vocabulary


@dataclass(frozen=True, slots=True)
class OverheadProtocol:
    """`clients` stream at once where throughput is compared, `many_clients` where the web process is loaded. With
    `viewer` they stream once more while somebody watches the live page's events.
    """

    clients: int = 32
    many_clients: int = 64
    step_ms: float = 5.0
    prompt_tokens: int = 64
    max_tokens: int = 512
    rounds: int = 5
    viewer: bool = False

    def check(self) -> None:
        """Raises `InvalidRequest` for values that cannot be."""
        for name, value, least, most in (
            ("clients", self.clients, 1, 512),
            ("many clients", self.many_clients, 1, 512),
            ("step ms", self.step_ms, 0, 10_000),
            ("prompt tokens", self.prompt_tokens, 1, 1024),
            ("max tokens", self.max_tokens, 2, 2048),
            ("rounds", self.rounds, 1, 1000),
        ):
            if not least <= value <= most:
                raise InvalidRequest(f"{name} is {value}; it must be {least} to {most}")

    def mock_settings(self) -> dict[str, object]:
        """Keywords of `MockSettings`. No prefix is cached: both sides compute every prompt."""
        most = max(self.clients, self.many_clients)
        return {"step_s": self.step_ms / 1e3, "max_num_seqs": most, "prefix_cache": False}


@dataclass(frozen=True, slots=True)
class Load:
    """Streams through the server; seconds of processor time by process."""

    clients: int
    wall_s: float
    output_tokens: int
    chunks: int
    web_cpu_s: float
    engine_cpu_s: float
    client_cpu_s: float

    @property
    def output_tps(self) -> float:
        return self.output_tokens / self.wall_s

    @property
    def tokens_per_chunk(self) -> float:
        """Above 1 where the server bundled tokens, since it or its reader fell behind."""
        return self.output_tokens / self.chunks

    @property
    def tokens_per_web_cpu_s(self) -> float:
        """Infinite where the time is below what the clock can tell."""
        return self.output_tokens / self.web_cpu_s if self.web_cpu_s else float("inf")


@dataclass(frozen=True, slots=True)
class OverheadRound:
    """First-token times are medians, in seconds."""

    alone_tps: float
    alone_cpu_s: float
    served: Load
    many: Load
    first_token_alone_s: float
    first_token_http_s: float
    watched: Load | None = None

    @property
    def viewer_share(self) -> float:
        """Part of the server's throughput that one viewer costs; negative if it was faster with one."""
        assert self.watched is not None, "nobody watched"
        return 1 - self.watched.output_tps / self.served.output_tps

    @property
    def viewer_cpu_share(self) -> float:
        """Processor time that the engine spends more with one viewer, as a part of all time."""
        assert self.watched is not None, "nobody watched"
        return (self.watched.engine_cpu_s - self.served.engine_cpu_s) / self.served.wall_s

    @property
    def lost_share(self) -> float:
        """Part of the engine's throughput that the server costs; negative if it was faster."""
        return 1 - self.served.output_tps / self.alone_tps


@dataclass(slots=True)
class OverheadRun:
    """Grows while it is measured."""

    protocol: OverheadProtocol
    environment: dict[str, object] = field(default_factory=environment_stamp)
    rounds: list[OverheadRound] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)

    def spread(self, of: Callable[[OverheadRound], float]) -> Spread:
        return Spread.of([of(each) for each in self.rounds])

    def charts(self) -> dict[str, dict[str, Spread]]:
        """Some of the figures, by unit and name."""
        of = {name: self.spread(figure) for name, figure in FIGURES.items()}
        return {
            "tokens/s": {
                "engine": of["engine_alone_tps"],
                "server": of["server_tps"],
                f"server, {self.protocol.many_clients} streams": of["many_clients_tps"],
            },
            "tokens per CPU-second of the web process": {"server": of["tokens_per_web_cpu_s"]},
            "first token, s": {"engine": of["first_token_alone_s"], "HTTP": of["first_token_http_s"]},
        }

    def as_object(self) -> dict[str, Any]:
        told = FIGURES | (VIEWER_FIGURES if self.protocol.viewer else {})
        figures = {name: asdict(self.spread(of)) for name, of in told.items()} if self.rounds else {}
        return {
            "bench": "overhead",
            **self.outcome.as_object(),
            "environment": self.environment,
            "protocol": asdict(self.protocol),
            "figures": figures,
            "rounds": [asdict(each) for each in self.rounds],
        }


FIGURES: dict[str, Callable[[OverheadRound], float]] = {
    "engine_alone_tps": lambda each: each.alone_tps,
    "server_tps": lambda each: each.served.output_tps,
    "lost_share": lambda each: each.lost_share,
    "many_clients_tps": lambda each: each.many.output_tps,
    "many_clients_tokens_per_chunk": lambda each: each.many.tokens_per_chunk,
    "tokens_per_web_cpu_s": lambda each: each.many.tokens_per_web_cpu_s,
    "first_token_alone_s": lambda each: each.first_token_alone_s,
    "first_token_http_s": lambda each: each.first_token_http_s,
    "first_token_added_s": lambda each: each.first_token_http_s - each.first_token_alone_s,
}

VIEWER_FIGURES: dict[str, Callable[[OverheadRound], float]] = {
    "viewer_share": lambda each: each.viewer_share,
    "viewer_cpu_share": lambda each: each.viewer_cpu_share,
}


async def bench_overhead(run: OverheadRun, on_round: Callable[[int], None] = lambda round_: None) -> None:
    """Fill `run`. Raises `InvalidRequest` where it cannot be measured, `EngineFault` that says in which round if a
    process or request fails; `run` keeps the rounds before.
    """
    protocol = run.protocol
    with run.outcome as outcome:
        check_proc()
        protocol.check()
        settings = json.dumps(protocol.mock_settings())
        with ChildProcess(CHILD, "engine", settings) as engine, ChildProcess(CHILD, "server", settings) as server:
            engine.read()
            address = Address.of(server.read()["url"])
            async with EndpointControl(address) as control:
                pair = _Pair(protocol, engine, server, control)
                await pair.until_ready()
                outcome.where = "warm-up"
                await pair.round(-1)
                for round_ in range(protocol.rounds):
                    on_round(round_)
                    outcome.where = f"round {round_ + 1} of {protocol.rounds}"
                    run.rounds.append(await pair.round(round_))


@dataclass(frozen=True, slots=True)
class _Pair:
    protocol: OverheadProtocol
    engine: ChildProcess
    server: ChildProcess
    control: EndpointControl

    async def until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not await self.control.ready():
            if time.monotonic() > deadline:
                raise EngineFault(f"the server was not ready within {READY_TIMEOUT_S} s")
            await asyncio.sleep(0.05)

    async def round(self, round_: int) -> OverheadRound:
        """Every second round begins with the server, so that a drift of the machine favours neither."""
        protocol, served = self.protocol, None
        if round_ % 2:
            served = await self._load(protocol.clients, round_)
        alone = self._alone(protocol.clients, protocol.max_tokens)
        firsts = [self._alone(1, 2)["first_token_s"] for _ in range(FIRST_TOKENS)]
        if served is None:
            served = await self._load(protocol.clients, round_)
        watched = None
        if protocol.viewer:
            served, watched = await self._with_viewer(round_)
        return OverheadRound(
            alone_tps=alone["output_tokens"] / alone["wall_s"],
            alone_cpu_s=alone["cpu_s"],
            served=served,
            many=await self._load(protocol.many_clients, round_),
            first_token_alone_s=statistics.median(firsts),
            first_token_http_s=await self._first_token(round_),
            watched=watched,
        )

    async def _with_viewer(self, round_: int) -> tuple[Load, Load]:
        """Two loads, one right after the other, the second of which is watched; in every second round the first."""
        clients = self.protocol.clients
        served = None if round_ % 2 else await self._load(clients, round_)
        async with watching(self.control.address):
            watched = await self._load(clients, round_)
        return served or await self._load(clients, round_), watched

    def _alone(self, sequences: int, max_tokens: int) -> dict[str, Any]:
        prompt_tokens = self.protocol.prompt_tokens
        return self.engine.ask({"sequences": sequences, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens})

    async def _load(self, clients: int, round_: int) -> Load:
        web, engine = self.server.pid, children_of(self.server.pid)
        before = cpu_seconds(web), sum(map(cpu_seconds, engine))
        done = await self._run(clients, clients, self.protocol.max_tokens, f"{round_} {clients}")
        return Load(
            clients=clients,
            wall_s=done.wall_s,
            output_tokens=sum(each.completion_tokens or 0 for each in done.outcomes),
            chunks=sum(len(each.arrivals_s) for each in done.outcomes),
            web_cpu_s=cpu_seconds(web) - before[0],
            engine_cpu_s=sum(map(cpu_seconds, engine)) - before[1],
            client_cpu_s=done.client_cpu_s,
        )

    async def _first_token(self, round_: int) -> float:
        done = await self._run(1, FIRST_TOKENS, 2, f"{round_} first")
        return statistics.median(each.arrivals_s[0] for each in done.outcomes)

    async def _run(self, clients: int, num_requests: int, max_tokens: int, seed: str) -> CellRun:
        """Raises `EngineFault` unless every request is answered in full."""
        mix = Mix("plain", self.protocol.prompt_tokens, max_tokens)
        endpoint = Endpoint(self.control.address, MODEL)
        source = TokenIdPrompts(_MOCK_IDS, "the mock model")
        requests = make_requests(plan_cell(mix, 0, clients, num_requests), endpoint, source, seed)
        done = await run_cell(self.control.connection, requests, clients)
        for each in done.outcomes:
            if each.result != "completed" or each.completion_tokens != max_tokens or not each.arrivals_s:
                raise EngineFault(
                    f"a request to our own server failed: {each.error or f'{each.completion_tokens} tokens came'}"
                )
        return done
