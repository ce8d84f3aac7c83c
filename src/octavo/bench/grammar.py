"""Measures what structured output costs: decode of a full batch with and without a JSON schema, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp, machine
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
class GrammarBench:
    """Tokens per second of the whole batch; `cost_percent` is of the two of each round, of which `by_round` has all."""

    model: str
    machine: str
    environment: dict[str, object]
    rounds: int
    batch: int
    new_tokens: int
    free_tps: Spread
    held_tps: Spread
    cost_percent: Spread
    by_round: dict[str, list[float]]

    def as_object(self) -> dict[str, object]:
        return {"bench": "grammar", **asdict(self)}

    def charts(self) -> dict[str, dict[str, Spread]]:
        """The figures by unit and name."""
        return {
            "tokens/s": {"free text": self.free_tps, "JSON schema": self.held_tps},
            "cost, %": {"JSON schema": self.cost_percent},
        }


def bench_grammar(
    core: EngineCore,
    *,
    batch: int,
    new_tokens: int,
    rounds: int,
    on_round: Callable[[int], None] = lambda number: None,
) -> GrammarBench:
    """Decode `new_tokens` of each of `batch` rows, `rounds` times with and without the schema, in changing order.

    Raises `InvalidRequest` for counts below 1.
    """
    for name, value in (("batch", batch), ("new tokens", new_tokens), ("rounds", rounds)):
        if value < 1:
            raise InvalidRequest(f"{name} is {value}; it must be at least 1")
    environment = environment_stamp()
    held = GrammarSpec.json_schema(SCHEMA)
    speeds: dict[GrammarSpec | None, list[float]] = {None: [], held: []}
    _decode(core, held, 1, 1)  # compiles
    for number in range(rounds):
        on_round(number)
        order: list[GrammarSpec | None] = [None, held] if number % 2 == 0 else [held, None]
        for grammar in order:
            speeds[grammar].append(_decode(core, grammar, batch, new_tokens))
    costs = [100 * (1 - slow / fast) for fast, slow in zip(speeds[None], speeds[held], strict=True)]
    return GrammarBench(
        model=core.loaded.plan.checkpoint.path.name,
        machine=machine(),
        environment=environment,
        rounds=rounds,
        batch=batch,
        new_tokens=new_tokens,
        free_tps=Spread.of(speeds[None]),
        held_tps=Spread.of(speeds[held]),
        cost_percent=Spread.of(costs),
        by_round={"free_tps": speeds[None], "held_tps": speeds[held]},
    )


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
