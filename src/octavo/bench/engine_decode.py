"""Decode speed of the whole engine over random weights, load by load, in one process. Prints nothing."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from octavo.bench.cuda_timing import read_ceiling
from octavo.bench.engine_requests import RequestCell, RequestLoad, bench_requests
from octavo.bench.kernel_loads import DecodeLoad
from octavo.bench.outcome import Outcome
from octavo.bench.percentiles import Spread
from octavo.bench.random_model import RandomCheckpoint
from octavo.bench.stamp import environment_stamp
from octavo.bench.stream_limit import kv_bytes, weight_bytes
from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import LoadedModel, load_model, plan_checkpoint, share_weights
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from octavo.storage.route import RouteSwitches

_WARM_UP = 8  # tokens of each request, so that kernels are compiled and graphs recorded before anything is timed
_CHUNK = 4096  # prompt tokens a step


@dataclass(frozen=True, slots=True)
class DecodeCell:
    """One load, over several rounds: while all its sequences decode, and none is being prefilled.

    `steps` are those of the last round, by how they were run (see `GraphRunner`). `step_bytes` is what a step has to
    read at least, midway: weights once, and the K/V of all tokens.
    """

    load: DecodeLoad
    tokens_per_s: Spread
    step_ms: Spread
    steps: dict[str, int]
    step_bytes: int

    def as_object(self, ceiling_gbps: float | None) -> dict[str, object]:
        limit = None if ceiling_gbps is None else len(self.load.lengths) * ceiling_gbps * 1e9 / self.step_bytes
        return {
            "load": self.load.name,
            "tokens_per_s": asdict(self.tokens_per_s),
            "step_ms": asdict(self.step_ms),
            "steps": self.steps,
            "step_bytes": self.step_bytes,
            "read_limit_tokens_per_s": None if limit is None else round(limit, 1),
        }


@dataclass
class EngineDecodeRun:
    """What is measured, and the cells so far. `first_token_s` is from the process's start, weights included.

    `ceiling_gbps` is how fast a CUDA device's memory was read; None before that is measured, and elsewhere.
    """

    directory: Path
    loads: Sequence[DecodeLoad]
    new_tokens: int
    rounds: int
    config: EngineConfig
    requests: RequestLoad | None = None
    load_s: float = 0.0
    first_token_s: float | None = None
    ceiling_gbps: float | None = None
    cells: list[DecodeCell] = field(default_factory=list)
    request_cell: RequestCell | None = None
    environment: dict[str, object] = field(default_factory=environment_stamp)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def device(self) -> str:
        """What it ran on."""
        return str(self.environment.get("device", self.environment["machine"]))

    def as_object(self) -> dict[str, object]:
        return {
            **self.outcome.as_object(),
            "model": self.directory.name,
            "environment": self.environment,
            "new_tokens": self.new_tokens,
            "rounds": self.rounds,
            "load_s": round(self.load_s, 2),
            "first_token_s": self.first_token_s,
            "read_ceiling_gbps": None if self.ceiling_gbps is None else round(self.ceiling_gbps, 1),
            "cells": [
                {"shape": self.directory.name, **cell, "commit": self.environment["commit"]}
                for cell in (
                    *(each.as_object(self.ceiling_gbps) for each in self.cells),
                    *(() if self.request_cell is None else (self.request_cell.as_object(),)),
                )
            ],
        }


def cell_line(cell: DecodeCell) -> str:
    """A cell in a line."""
    return f"{cell.load.name:>10}   {cell.tokens_per_s} tokens/s   {cell.step_ms} ms per step"


def bench_engine_decode(
    run: EngineDecodeRun,
    progress: Callable[[DecodeCell], None],
    on_requests: Callable[[RequestCell], None] = lambda cell: None,
) -> None:
    """Measure every load of `run`, one engine for each over the same weights, then its requests.

    Raises `EngineFault` that says under which load it could not go on; `run` keeps the cells before.
    """
    with run.outcome:
        _measure(run, progress, on_requests)


def _measure(
    run: EngineDecodeRun, progress: Callable[[DecodeCell], None], on_requests: Callable[[RequestCell], None]
) -> None:
    loaded = load_random(run.directory, run.config)
    run.load_s = loaded.load_s
    on_cuda = loaded.plan.device.type == "cuda"
    if on_cuda:
        run.environment |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for load in run.loads:
        run.outcome.where = load.name
        engine = EngineDecode(loaded, load, run.config, run.new_tokens)
        engine.warm_up(lambda: _note_start(run))
        if run.ceiling_gbps is None and on_cuda:
            run.ceiling_gbps = read_ceiling()
        rounds = [engine.run(run.new_tokens) for _ in range(run.rounds)]
        speeds = [count / seconds for count, _, seconds in rounds]
        step_ms = [seconds / steps * 1e3 for _, steps, seconds in rounds]
        midway = [length + run.new_tokens / 2 for length in load.lengths]
        step_bytes = weight_bytes(loaded) + kv_bytes(loaded, midway)
        cell = DecodeCell(load, Spread.of(speeds), Spread.of(step_ms), engine.steps_of_last_run, step_bytes)
        run.cells.append(cell)
        progress(cell)
        del engine
    if run.requests is not None:
        run.outcome.where = run.requests.name
        run.request_cell = bench_requests(loaded, run.requests, run.config, run.rounds, lambda: _note_start(run))
        on_requests(run.request_cell)


def load_random(directory: Path, config: EngineConfig) -> LoadedModel:
    """A model of random weights, on its device."""
    return load_model(plan_checkpoint(RandomCheckpoint.open(directory), config), config)


class EngineDecode:
    """An engine for one load. Prompts are the same in every run, so that their K/V is computed once."""

    def __init__(
        self,
        loaded: LoadedModel,
        load: DecodeLoad,
        config: EngineConfig,
        new_tokens: int,
        switches: RouteSwitches | None = None,
    ) -> None:
        longest = max(load.lengths) + max(new_tokens, _WARM_UP) + 1
        blocks = sum(-(-(length + new_tokens + _WARM_UP) // config.block_size) + 2 for length in load.lengths)
        settings = EngineConfig(
            storage="paged",
            block_size=config.block_size,
            max_context=longest,
            max_num_seqs=len(load.lengths),
            num_kv_blocks=2 * blocks,
            prefill_chunk=_CHUNK,
            max_batch_tokens=2 * _CHUNK,
            kv_dtype=config.kv_dtype,
            dtype=config.dtype,
            device=config.device,
            threads=config.threads,
            decode_lookahead=config.decode_lookahead,
            cuda_graphs=config.cuda_graphs,
            exact=config.exact,
        )
        decision = StorageDecision(StorageKind.PAGED, "the benchmark's")
        self.core = EngineCore(share_weights(loaded, settings, decision), settings, switches=switches)
        self.steps_of_last_run: dict[str, int] = {}
        rng, vocab_size = random.Random(0), loaded.plan.config.vocab_size
        self._prompts = [tuple(rng.randrange(vocab_size) for _ in range(length)) for length in load.lengths]

    def warm_up(self, on_first_token: Callable[[], None] = lambda: None) -> None:
        """Kernels are compiled in a first run, graphs recorded in a second."""
        self.run(_WARM_UP, on_first_token)
        self.run(_WARM_UP)

    def run(self, new_tokens: int, on_first_token: Callable[[], None] = lambda: None) -> tuple[int, int, float]:
        """Answer all prompts: tokens, steps and seconds from when all have a token to when the first has them all."""
        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        for i, prompt in enumerate(self._prompts):
            self.core.add(Request(f"{i}", prompt, params, 0))
        counts = [0] * len(self._prompts)
        graphs = self.core.runner.graphs
        before = dict(graphs.counts) if graphs is not None else {}
        began = ended = 0.0
        tokens = steps = 0
        while self.core.has_work:
            events = self.core.step()
            now = time.perf_counter()
            for event in events:
                assert event.error is None, event.error
                counts[int(event.delta.request_id)] += len(event.delta.token_ids)
            if events and sum(counts) == len(events):
                on_first_token()
            if began and not ended:
                tokens, steps = tokens + len(events), steps + 1
                if max(counts) >= new_tokens:
                    ended = now
            elif not began and min(counts) > 0:
                began = now
        if graphs is not None:
            self.steps_of_last_run = {name: count - before.get(name, 0) for name, count in graphs.counts.items()}
        return tokens, max(1, steps), max(ended - began, 1e-9)


def _note_start(run: EngineDecodeRun) -> None:
    if run.first_token_s is None:
        run.first_token_s = process_age()


def process_age() -> float | None:
    """Seconds since this process was started; None where the system does not say."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return None
    started = int(stat.read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return round(float(Path("/proc/uptime").read_text().split()[0]) - started, 2)
