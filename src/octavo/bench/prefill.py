"""`octavo bench prefill`: prompt tokens/s of one sequence by length, a fresh process in each round, beside a peer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from octavo.bench.child_process import ChildProcess
from octavo.bench.load_prompts import WORDS
from octavo.bench.outcome import Outcome
from octavo.bench.peers import Peer, PrefillFigures
from octavo.bench.percentiles import Spread
from octavo.bench.serving import rotated
from octavo.bench.stamp import environment_stamp
from octavo.config import EngineConfig
from octavo.engine.loaded_model import ModelPlan
from octavo.errors import InvalidRequest

CHILD = "octavo.bench.prefill_child"
OURS, PEER = "octavo", "llama.cpp"
Measure = Callable[[Sequence[list[int]]], PrefillFigures]


@dataclass(slots=True)
class PrefillRun:
    """Grows while it is measured. `measured` has by engine what each round gave, tokens/s in the order of `lengths`."""

    model: str
    lengths: tuple[int, ...]
    rounds: int
    peer: Peer | None = None
    environment: dict[str, object] = field(default_factory=environment_stamp)
    measured: dict[str, list[PrefillFigures]] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def engines(self) -> list[str]:
        """Those of which something was measured."""
        return [engine for engine, rounds in self.measured.items() if rounds]

    def spread(self, engine: str, length: int) -> Spread:
        index = self.lengths.index(length)
        return Spread.of([each.tps[index] for each in self.measured[engine]])

    def ratio(self, engine: str, length: int) -> Spread:
        """Ours over that engine's, round by round."""
        index = self.lengths.index(length)
        pairs = zip(self.measured[OURS], self.measured[engine], strict=False)  # a round that broke off has one of them
        return Spread.of([ours.tps[index] / theirs.tps[index] for ours, theirs in pairs])

    def peak_mib(self, engine: str) -> Spread:
        """The most memory of its processes."""
        return Spread.of([each.peak_bytes / (1 << 20) for each in self.measured[engine]])

    def as_object(self) -> dict[str, Any]:
        return {
            "bench": "prefill",
            **self.outcome.as_object(),
            "model": self.model,
            "environment": self.environment,
            "peers": {} if self.peer is None else {PEER: self.peer.as_object()},
            "rounds": self.rounds,
            "prompt_tokens": list(self.lengths),
            "prefill_tps": {
                engine: {str(length): self.spread(engine, length).as_object() for length in self.lengths}
                for engine in self.engines
            },
            "ours_over": {
                engine: {str(length): self.ratio(engine, length).as_object() for length in self.lengths}
                for engine in self.engines
                if engine != OURS and OURS in self.engines
            },
            "peak_mib": {engine: self.peak_mib(engine).as_object() for engine in self.engines},
            "tps_by_round": {engine: [each.tps for each in rounds] for engine, rounds in self.measured.items()},
        }


def check_lengths(plan: ModelPlan, lengths: Sequence[int], rounds: int) -> None:
    """Raises `InvalidRequest` for values that cannot be."""
    most = plan.ledger.max_context - 1
    for name, value, limit in (*(("prompt tokens", each, most) for each in lengths), ("rounds", rounds, 1000)):
        if not 1 <= value <= limit:
            raise InvalidRequest(f"{name} is {value}; it must be 1 to {limit}")
    if len(set(lengths)) != len(lengths):
        raise InvalidRequest(f"the prompt lengths are {', '.join(map(str, lengths))}; name each only once")


def bench_prefill(
    run: PrefillRun, plan: ModelPlan, config: EngineConfig, *, on_round: Callable[[int], None] = lambda round_: None
) -> None:
    """Fill `run`: in every round each engine in a fresh process computes the same prompts, in changing order.

    Both warm up on a prompt of the shortest length before. Raises `EngineFault` that names engine and round if a
    process fails; `run` keeps what was measured.
    """
    path, peer = plan.checkpoint.path, run.peer
    engines: dict[str, Measure] = {OURS: lambda prompts: measure_ours(path, config, prompts)}
    if peer is not None:
        engines[PEER] = lambda prompts: peer.prefill(path, plan.threads, prompts)
    run.measured |= {name: [] for name in engines}
    words = plan.checkpoint.tokenizer(force=config.force).encode(" ".join(WORDS), add_special_tokens=False)
    pool = sorted(set(words))
    with run.outcome as outcome:
        for round_ in range(run.rounds):
            on_round(round_)
            prompts = draw_prompts(pool, run.lengths, round_)
            for name in rotated(list(engines), round_):
                outcome.where = f"{name}, round {round_ + 1} of {run.rounds}"
                run.measured[name].append(engines[name](prompts))


def draw_prompts(pool: Sequence[int], lengths: Sequence[int], round_: int) -> list[list[int]]:
    """The warm-up's prompt, of the shortest length, and one of each length; all differ in their first tokens."""
    draw = random.Random(f"prefill {round_}")
    return [draw.choices(pool, k=length) for length in (min(lengths), *lengths)]


def measure_ours(path: Path, config: EngineConfig, prompts: Sequence[list[int]]) -> PrefillFigures:
    """Of every prompt but the first, by a fresh process of ours. Raises `EngineFault` if that ends early."""
    settings: Mapping[str, object] = {"model": str(path), "config": asdict(config)}
    with ChildProcess(CHILD, json.dumps(settings)) as child:
        child.read()
        found = child.ask({"prompts": list(prompts)})
        return PrefillFigures(found["prefill_tps"], found["peak_bytes"])
