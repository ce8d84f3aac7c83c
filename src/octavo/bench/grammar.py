"""Measures what structured output costs: decode of a full batch with and without a JSON schema, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from octavo.bench.outcome import Outcome
from octavo.bench.percentiles import Spread
from octavo.bench.serving import rotated
from octavo.bench.stamp import environment_stamp, machine_line, versions_line
from octavo.engine.core import EngineCore
from octavo.errors import EngineFault, InvalidRequest
from octavo.grammar_spec import GrammarSpec
from octavo.request import Request
from octavo.sampling_params import SamplingParams

# Objects in a list that never has to end, so that every row runs as long as it is measured.
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "email": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
            "active": {"type": "boolean"},
        },
        "required": ["name", "age", "email", "tags", "active"],
        "additionalProperties": False,
    },
}
_PROMPT = "Write a list of people as JSON."
_WARM_UP = 4  # tokens of each row before the clock starts, prefill among them


@dataclass(frozen=True, slots=True)
class GrammarRound:
    """Tokens per second of the whole batch, free and held to the schema."""

    free_tps: float
    held_tps: float

    @property
    def cost_percent(self) -> float:
        return 100 * (1 - self.held_tps / self.free_tps)


FIGURES = ("free_tps", "held_tps", "cost_percent")


@dataclass(slots=True)
class GrammarRun:
    """Grows by whole rounds while it is measured."""

    model: str
    batch: int
    new_tokens: int
    num_rounds: int
    rounds: list[GrammarRound] = field(default_factory=list)
    environment: dict[str, object] = field(default_factory=environment_stamp)
    outcome: Outcome = field(default_factory=Outcome)

    def check(self) -> None:
        """Raises `InvalidRequest` for counts below 1."""
        for name, value in (("batch", self.batch), ("new tokens", self.new_tokens), ("rounds", self.num_rounds)):
            if value < 1:
                raise InvalidRequest(f"{name} is {value}; it must be at least 1")

    def spread(self, name: str) -> Spread:
        return Spread.of([getattr(each, name) for each in self.rounds])

    def as_object(self) -> dict[str, object]:
        return {
            "bench": "grammar",
            **self.outcome.as_object(),
            "model": self.model,
            "environment": self.environment,
            "rounds": self.num_rounds,
            "batch": self.batch,
            "new_tokens": self.new_tokens,
            **{name: self.spread(name).as_object() for name in FIGURES},
            "by_round": {name: [getattr(each, name) for each in self.rounds] for name in FIGURES},
        }

    def charts(self) -> dict[str, dict[str, Spread]]:
        """The figures by unit and name."""
        return {
            "tokens/s": {"free text": self.spread("free_tps"), "JSON schema": self.spread("held_tps")},
            "cost, %": {"JSON schema": self.spread("cost_percent")},
        }


def report_lines(run: GrammarRun) -> Iterator[str]:
    """Medians of the rounds (least to most)."""
    yield from run.outcome.lines()
    yield f"{run.model}; {machine_line(run.environment)}; {versions_line(run.environment)}"
    yield f"batch {run.batch}, median of {len(run.rounds)} (least to most)"
    yield f"free text     {run.spread('free_tps')} tokens/s"
    yield f"JSON schema   {run.spread('held_tps')} tokens/s"
    yield f"cost          {run.spread('cost_percent')} %"


def bench_grammar(run: GrammarRun, core: EngineCore, *, on_round: Callable[[int], None] = lambda number: None) -> None:
    """Decode `new_tokens` of each of `batch` rows, in every round with and without the schema, in changing order.

    Raises `EngineFault` that names round and arm if a request fails; `run` keeps the rounds before.
    """
    held = GrammarSpec.json_schema(SCHEMA)
    arms: dict[str, GrammarSpec | None] = {"free text": None, "JSON schema": held}
    with run.outcome as outcome:
        _decode(core, held, 1, 1)  # compiles
        for number in range(run.num_rounds):
            on_round(number)
            speeds = {}
            for name in rotated(list(arms), number):
                outcome.where = f"{name}, round {number + 1} of {run.num_rounds}"
                speeds[name] = _decode(core, arms[name], run.batch, run.new_tokens)
            run.rounds.append(GrammarRound(speeds["free text"], speeds["JSON schema"]))


def _decode(core: EngineCore, grammar: GrammarSpec | None, batch: int, new_tokens: int) -> float:
    """Tokens per second, from when every row has its first ones."""
    prompt = tuple(core.loaded.tokenizer.encode(_PROMPT))
    params = SamplingParams(
        max_tokens=_WARM_UP + new_tokens, temperature=1.0, grammar=grammar, ignore_eos=grammar is None
    )
    given = dict.fromkeys((str(row) for row in range(batch)), 0)
    for row, request_id in enumerate(given):
        core.add(Request(request_id, prompt, params, seed=row))
    began, before = 0.0, 0
    while core.has_work:
        for event in core.step():
            if event.error is not None:
                raise EngineFault(f"a measured request failed: {event.error}")
            given[event.delta.request_id] += len(event.delta.token_ids)
        if not began and min(given.values()) >= _WARM_UP:
            began, before = time.perf_counter(), sum(given.values())
    return (sum(given.values()) - before) / (time.perf_counter() - began)
