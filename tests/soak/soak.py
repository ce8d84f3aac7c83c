"""A soak: thousands of requests of all kinds against one real server, and what must hold during, after and at its end.

* Whoever reads an answer to its end gets what an engine alone answers, to the last character and log-probability.
* No request takes longer than its deadline; a full queue is told with 429, and everybody gets in at last.
* When all is quiet no block is live, and memory is what it was after the first fifth of the requests.
* Requests were preempted, and prefixes found and given up: the pool was as small as it was meant to be.
* SIGTERM lets those in end with their whole answer, and nobody else in.
"""

from __future__ import annotations

import asyncio
import operator
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.server.server_process import ServerProcess, octavo_serve
from tests.soak.clients import Clients, Tally, Unavailable, body_of
from tests.soak.questions import Examiner, Question
from tests.soak.scenario import Scenario
from tests.soak.watch import Counters, Memory, wait_for

LANES = 22  # clients at once; what they ask for fills the queue now and then, not always: that would let in single
# choices only, as each place that comes free goes to the next to ask
LONG_CHOICES = 4
LONG_REQUESTS = 5
OPENING_REQUESTS = 9  # of LONG_CHOICES each: more than run and wait
PARTS = 5  # of the traffic, with a pause after each in which blocks and memory are counted
WARM_REQUESTS = 500  # after so many, memory is flat
MAX_GROWTH = 8 << 20  # bytes that either process may take more at the end than after the first of the parts
MAX_COLD_GROWTH = 40 << 20  # the same where that part was too short to touch all that the engine ever uses
MIB = 1 << 20


@dataclass(slots=True)
class Report:
    """How it went."""

    scenario: str
    num_requests: int
    tally: Tally
    memory: list[Memory] = field(default_factory=list)  # after warming up, ..., at the end
    counters: Counters | None = None
    drained: int = 0
    refused: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        """All counts in one line."""
        tally, found = self.tally, self.counters
        assert found is not None
        fates = ", ".join(f"{count} {fate}" for fate, count in tally.fates.items())
        memory = "; ".join(
            f"{name} {' -> '.join(f'{getattr(each, name) / MIB:.1f}' for each in self.memory)} MiB"
            for name in ("server", "engine")
        )
        return (
            f"soak {self.scenario}: {self.num_requests} requests in {self.seconds:.0f} s; {fates}; "
            f"{tally.survivors} answers equal ({tally.streamed} streamed, {tally.sampled} seeded); "
            f"{tally.queue_full} times a full queue, {tally.most_refusals} for one request; "
            f"{found.total('octavo_preemptions_total'):g} preemptions, "
            f"{found.total('octavo_prefix_cache_hits_total'):g} prefix hits, "
            f"{found.total('octavo_prefix_cache_evictions_total'):g} evictions; 0 blocks live; {memory}; "
            f"SIGTERM: {self.drained} ended whole, {self.refused} refused"
        )


class Soak:
    """One scenario. `questions` are asked again and again in random order."""

    def __init__(self, scenario: Scenario, questions: Sequence[Question], long: Sequence[Question], seed: int) -> None:
        self._scenario = scenario
        self._questions = questions
        self._long = long
        self._seed = seed

    @classmethod
    def prepared(cls, scenario: Scenario, path: Path, num_questions: int, seed: int) -> Soak:
        """Writes the model into `path`, and has the questions answered by an engine alone."""
        scenario.write(path)
        examiner = Examiner(scenario.alone(path), seed)
        return cls(
            scenario, examiner.questions(num_questions), [examiner.long_question(LONG_CHOICES) for _ in "ab"], seed
        )

    def run(self, path: Path, num_requests: int) -> Report:
        """Raises `AssertionError`, `Wrong` or `TimeoutError`, alone or in a group, for whatever does not hold."""
        report = Report(self._scenario.name, num_requests, Tally())
        began = time.monotonic()
        with octavo_serve(*self._scenario.flags(path)) as server:
            server.wait_until_ready()
            asyncio.run(self._run(server, report))
            assert server.ended() == 0, server.log
            assert "Traceback" not in server.log, server.log
        report.seconds = time.monotonic() - began
        return report

    async def _run(self, server: ServerProcess, report: Report) -> None:
        limits = httpx.Limits(max_connections=LANES + OPENING_REQUESTS)
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=None, limits=limits) as http:
            clients = Clients(server.url, http, report.tally)
            parts = [report.num_requests * part // PARTS for part in range(PARTS + 1)]
            await asyncio.gather(*(self._read_long(clients, number) for number in range(OPENING_REQUESTS)))
            for count in map(operator.sub, parts[1:], parts[:-1]):
                await self._traffic(clients, count, f"{self._seed} {len(report.memory)}")
                report.counters = await wait_for(http, "idle", lambda found: found.idle)
                report.memory.append(Memory.of(server.process.pid))
            self._judge(report)
            await self._drain(server, http, clients, report)

    async def _read_long(self, clients: Clients, number: int) -> None:
        """Several of these fill places and queue, and grow beyond the blocks that there are, in any timing."""
        question = self._long[number % len(self._long)]
        await clients.read(question, body_of(question, stream=number % 2 == 0))

    async def _traffic(self, clients: Clients, count: int, seed: str) -> None:
        numbers = iter(range(count))

        async def lane() -> None:
            for number in numbers:  # which all lanes share
                draw = random.Random(f"{seed} {number}")
                await clients.ask(draw.choice(self._questions), draw)

        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(lane())

    def _judge(self, report: Report) -> None:
        """What must have happened, and must not."""
        tally, found, memory = report.tally, report.counters, report.memory
        assert found is not None
        assert sum(tally.fates.values()) == report.num_requests
        assert min(tally.fates.values()) > 0 and min(tally.streamed, tally.sampled, tally.queue_full) > 0, tally
        assert found.total("octavo_prefix_cache_hits_total") > 0
        assert found.total("octavo_prefix_cache_evictions_total") > 0
        assert (found.total("octavo_preemptions_total") > 0) == self._scenario.preempts
        assert found.total("octavo_requests_total", outcome="disconnected") > 0
        assert found.total("octavo_requests_total", outcome="server_error") == 0
        is_warm = report.num_requests // PARTS >= WARM_REQUESTS
        assert memory[-1].growth(memory[0]) <= (MAX_GROWTH if is_warm else MAX_COLD_GROWTH), report.line()

    async def _drain(self, server: ServerProcess, http: httpx.AsyncClient, clients: Clients, report: Report) -> None:
        """Requests that run or wait when SIGTERM comes end whole, while others go on asking and are sent away."""

        async def accepted(number: int) -> None:
            await self._read_long(clients, number)
            report.drained += 1

        async with asyncio.TaskGroup() as group:
            inside = [group.create_task(accepted(number)) for number in range(LONG_REQUESTS)]
            await wait_for(http, "full", lambda found: found.num_open == LONG_REQUESTS * LONG_CHOICES)
            server.process.terminate()
            while (await http.get("/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            assert not any(task.done() for task in inside), "they were too short to be drained"
            while not all(task.done() for task in inside):
                await self._ask_late(clients, report)
        assert report.drained == LONG_REQUESTS
        assert report.refused > 0

    async def _ask_late(self, clients: Clients, report: Report) -> None:
        question = self._questions[report.refused % len(self._questions)]
        try:
            await clients.read(question, body_of(question, stream=False))
        except Unavailable:
            report.refused += 1
            await asyncio.sleep(0.02)
        except httpx.TransportError:  # those inside have ended, and so has the server
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("a request was let in after SIGTERM")
