"""The server as parity arms: questions over HTTP to `octavo serve`, in a process of its own and under other traffic."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from octavo.config import EngineConfig
from octavo.engine.loaded_model import ModelPlan
from octavo.errors import EngineFault
from octavo.parity.child_command import child_command
from octavo.parity.server_noise import LANES, NoiseCounts, NoiseLane
from octavo.parity.server_process import ServedProcess
from octavo.parity.server_questions import Answer, Question
from octavo.step_batch import StorageKind

PARALLEL = 6  # fewer than ask at once, so that some have to wait
MAX_BATCH_TOKENS = 160  # so that long prompts are cut, and share steps with tokens being generated
NOISE_TOKENS = 24
_TIMEOUT = httpx.Timeout(3600, connect=30)  # an answer may take long where it is not streamed


@dataclass(slots=True)
class ServedAnswers:
    """One for each question, in their order. `routes` are all that the server took, `problem` is of the whole arm."""

    answers: list[Answer]
    routes: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None


def ask_server(
    plan: ModelPlan, config: EngineConfig, kind: StorageKind, questions: Sequence[Question], noise: Sequence[str]
) -> ServedAnswers:
    """Start a server with `kind` of storage, ask it all `questions` at once while others ask, and end it.

    Prompts of the others begin like the texts of `noise`.
    """
    settings = {
        "--storage": kind.value,
        "--parallel": PARALLEL,
        "--max-batch-tokens": MAX_BATCH_TOKENS,
        "--host": "127.0.0.1",
        "--port": 0,
        "--log-level": "info",
    }
    try:
        with ServedProcess(child_command(plan, config, "serve", settings)) as server:
            return asyncio.run(_interview(server.url, questions, noise))
    except (EngineFault, httpx.HTTPError) as error:
        return ServedAnswers([], problem=_said(error))


async def _interview(url: str, questions: Sequence[Question], noise: Sequence[str]) -> ServedAnswers:
    counts = NoiseCounts()
    limits = httpx.Limits(max_connections=len(questions) + LANES)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=_TIMEOUT, limits=limits) as client:
        async with asyncio.TaskGroup() as tasks:
            lanes = [tasks.create_task(NoiseLane(i, noise, NOISE_TOKENS, counts).run(client)) for i in range(LANES)]
            asked = [tasks.create_task(_ask(client, question)) for question in questions]
            await asyncio.wait(asked)
            for lane in lanes:
                lane.cancel()
        problem = next((lane.result() for lane in lanes if not lane.cancelled()), None)
        if problem is None and not (counts.finished and counts.broken_off):
            problem = f"other requests meanwhile: {counts.finished} ended, {counts.broken_off} broken off"
        routes = (await client.get("/v1/internal/routes")).raise_for_status().json()["routes"]
    taken: Counter[str] = Counter()
    for each in routes:
        taken[each["route"]] += each["count"]
    return ServedAnswers([task.result() for task in asked], taken, problem)


async def _ask(client: httpx.AsyncClient, question: Question) -> Answer:
    answer = Answer()
    try:
        async with client.stream("POST", "/v1/completions", json=question.body()) as response:
            if response.status_code != 200:
                answer.problem = f"was answered {response.status_code}: {(await response.aread()).decode()}"
            elif question.streamed:
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        _take(answer, json.loads(line.removeprefix("data: ")))
            else:
                _take(answer, json.loads(await response.aread()))
    except httpx.HTTPError as error:
        answer.problem = _said(error)
    return answer


def _take(answer: Answer, found: Mapping[str, Any]) -> None:
    """A whole answer, or an event of a stream."""
    if "error" in found:
        answer.problem = f"was broken off: {found['error']['message']}"
        return
    for choice in found["choices"]:
        answer.add(choice)
    if found["usage"] is not None:
        answer.prompt_tokens = found["usage"]["prompt_tokens"]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, httpx.HTTPError) else str(error)
