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
from octavo.bench.peers import llama_cpp_installed, prefill_llama_cpp
from octavo.bench.percentiles import Spread
from octavo.bench.serving import rotated
from octavo.bench.stamp import environment_stamp
from octavo.config import EngineConfig
from octavo.engine.loaded_model import ModelPlan
from octavo.errors import InvalidRequest

CHILD = "octavo.bench.prefill_child"
OURS, PEER = "octavo", "llama.cpp"
Measure = Callable[[Sequence[list[int]]], list[float]]


@dataclass(slots=True)
class PrefillRun:
    """Grows while it is measured. `tps` has tokens/s by engine, round and length, each round's in their order."""

    model: str
    lengths: tuple[int, ...]
    rounds: int
    environment: dict[str, object] = field(default_factory=environment_stamp)
    tps: dict[str, list[list[float]]] = field(default_factory=dict)

    def spread(self, engine: str, length: int) -> Spread:
        index = self.lengths.index(length)
        return Spread.of([each[index] for each in self.tps[engine]])

    def ratio(self, engine: str, length: int) -> Spread:
        """Ours over that engine's, round by round."""
        index = self.lengths.index(length)
        pairs = zip(self.tps[OURS], self.tps[engine], strict=False)  # a round that broke off has one of them
        return Spread.of([ours[index] / theirs[index] for ours, theirs in pairs])

    @property
    def complete(self) -> bool:
        return bool(self.tps) and all(len(each) == self.rounds for each in self.tps.values())

    def as_object(self) -> dict[str, Any]:
        return {
            "bench": "prefill",
            "complete": self.complete,
            "model": self.model,
            "environment": self.environment,
            "rounds": self.rounds,
            "prompt_tokens": list(self.lengths),
            "prefill_tps": {
                engine: {str(length): self.spread(engine, length).as_object() for length in self.lengths}
                for engine in self._measured()
            },
            "ours_over": {
                engine: {str(length): self.ratio(engine, length).as_object() for length in self.lengths}
                for engine in self._measured()
                if engine != OURS and OURS in self._measured()
            },
            "tps_by_round": self.tps,
        }

    def _measured(self) -> list[str]:
        return [engine for engine, rounds in self.tps.items() if rounds]


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

    Both warm up on a prompt of the shortest length before. Raises `EngineFault` if a process fails.
    """
    path = plan.checkpoint.path
    engines: dict[str, Measure] = {OURS: lambda prompts: measure_ours(path, config, prompts)}
    if path.suffix == ".gguf" and llama_cpp_installed():
        engines[PEER] = lambda prompts: prefill_llama_cpp(path, plan.threads, prompts)
    run.tps |= {name: [] for name in engines}
    words = plan.checkpoint.tokenizer(force=config.force).encode(" ".join(WORDS), add_special_tokens=False)
    pool = sorted(set(words))
    for round_ in range(run.rounds):
        on_round(round_)
        prompts = draw_prompts(pool, run.lengths, round_)
        for name in rotated(list(engines), round_):
            run.tps[name].append(engines[name](prompts))


def draw_prompts(pool: Sequence[int], lengths: Sequence[int], round_: int) -> list[list[int]]:
    """The warm-up's prompt, of the shortest length, and one of each length; all differ in their first tokens."""
    draw = random.Random(f"prefill {round_}")
    return [draw.choices(pool, k=length) for length in (min(lengths), *lengths)]


def measure_ours(path: Path, config: EngineConfig, prompts: Sequence[list[int]]) -> list[float]:
    """Tokens/s of every prompt but the first, by a fresh process of ours. Raises `EngineFault` if that ends early."""
    settings: Mapping[str, object] = {"model": str(path), "config": asdict(config)}
    with ChildProcess(CHILD, json.dumps(settings)) as child:
        child.read()
        found: list[float] = child.ask({"prompts": list(prompts)})["prefill_tps"]
        return found
