"""Measures one sequence end to end: time to first token from process start, prefill and decode speed, peak memory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.bench.child_process import run_to_end
from octavo.bench.outcome import Outcome
from octavo.bench.peers import Peer, PeerSpeed
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp
from octavo.engine.profile import ProfileSettings
from octavo.errors import EngineFault

OURS, PEER = "octavo", "llama.cpp"
FIGURES = ("first_token_s", "decode_tps", "prefill_tps", "peak_mib")
PEER_FIGURES = FIGURES[1:]
_PROMPT = "The capital of France is"
_RUN = """
import json, sys
from octavo.bench.peer_child import peak_bytes
from octavo.cli.main import invoke
invoke(sys.argv[1:])
print(json.dumps({"peak_bytes": peak_bytes()}))
"""


@dataclass(frozen=True, slots=True)
class DecodeRound:
    """Fresh processes of ours, and one of the peer, on the same prompts."""

    prompt_tokens: int
    first_token_s: float
    decode_tps: float
    prefill_tps: float
    peak_mib: float
    peer: PeerSpeed | None

    def figure(self, engine: str, name: str) -> float:
        if engine == OURS:
            return float(getattr(self, name))
        assert self.peer is not None
        return self.peer.peak_bytes / (1 << 20) if name == "peak_mib" else float(getattr(self.peer, name))


@dataclass(slots=True)
class DecodeRun:
    """Grows by whole rounds while it is measured. `peer` runs in turn with ours, if there is one."""

    model: str
    repeats: int
    new_tokens: int
    peer: Peer | None = None
    rounds: list[DecodeRound] = field(default_factory=list)
    environment: dict[str, object] = field(default_factory=environment_stamp)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def prompt_tokens(self) -> int:
        """Of the long prompt, as the model counts them."""
        return self.rounds[0].prompt_tokens

    def spread(self, engine: str, name: str) -> Spread:
        return Spread.of([each.figure(engine, name) for each in self.rounds])

    def ratio(self, name: str) -> Spread:
        """Ours over the peer's, round by round."""
        return Spread.of([each.figure(OURS, name) / each.figure(PEER, name) for each in self.rounds])

    def as_object(self) -> dict[str, Any]:
        figures = {name: self.spread(OURS, name).as_object() for name in FIGURES}
        by_run = {name: [each.figure(OURS, name) for each in self.rounds] for name in FIGURES}
        peers, ratios = {}, {}
        if self.peer is not None:
            spreads = {name: self.spread(PEER, name).as_object() for name in PEER_FIGURES}
            peers = {PEER: {**self.peer.as_object(), **spreads}}
            ratios = {PEER: {name: self.ratio(name).as_object() for name in PEER_FIGURES}}
            by_run |= {f"{PEER} {name}": [each.figure(PEER, name) for each in self.rounds] for name in PEER_FIGURES}
        return {
            "bench": "decode",
            **self.outcome.as_object(),
            "model": self.model,
            "environment": self.environment,
            "repeats": self.repeats,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            **figures,
            "peers": peers,
            "ours_over": ratios,
            "by_run": by_run,
        }

    def charts(self) -> dict[str, dict[str, Spread]]:
        """The figures by unit and engine."""
        titles = ("first token, s", "decode, tokens/s", "prefill, tokens/s", "peak memory, MiB")
        charts = {title: {OURS: self.spread(OURS, name)} for title, name in zip(titles, FIGURES, strict=True)}
        if self.peer is not None:
            for title, name in zip(titles[1:], PEER_FIGURES, strict=True):
                charts[title][PEER] = self.spread(PEER, name)
        return charts


def bench_decode(
    run: DecodeRun,
    model: Path,
    flags: Sequence[str],
    *,
    threads: int,
    prompt_tokens: int,
    profiles: ProfileSettings | None = None,
    on_run: Callable[[int], None] = lambda round_: None,
) -> None:
    """Run `octavo generate` in fresh processes, as a person would: one token, then many, then a long prompt.

    One more before them is not counted. The peer runs in turn with it, on the same token ids and threads. With
    `profiles` one more process, which is not timed, writes a profile of its first steps.

    Raises `EngineFault` that names engine and round if a process fails; `run` keeps the rounds before.
    """
    with run.outcome as outcome:
        _generate(model, [*flags, "-n", "1"], _PROMPT)  # compiles kernels if need be, and brings the files into memory
        for round_ in range(run.repeats):
            on_run(round_)
            place = f"round {round_ + 1} of {run.repeats}"
            outcome.where = f"{OURS}, {place}"
            started = time.perf_counter()
            _generate(model, [*flags, "-n", "1"], _PROMPT)
            first_token_s = time.perf_counter() - started
            short, _ = _generate(model, [*flags, "-n", str(run.new_tokens)], _PROMPT)
            long, peak = _generate(model, [*flags, "-n", "2"], " ".join(["word"] * prompt_tokens))
            speed = None
            if run.peer is not None:
                outcome.where = f"{PEER}, {place}"
                prompts = short["prompt_token_ids"], long["prompt_token_ids"]
                speed = run.peer.decode(model, threads, prompts[0], run.new_tokens, prompts[1])
            run.rounds.append(
                DecodeRound(
                    long["usage"]["prompt_tokens"],
                    first_token_s,
                    short["timings"]["decode_tps"],
                    long["timings"]["prefill_tps"],
                    peak / (1 << 20),
                    speed,
                )
            )
        if profiles is not None:
            outcome.where = "profile"
            where = ["--profile", str(profiles.directory), "--profile-steps", str(profiles.num_steps)]
            _generate(model, [*flags, *where, "-n", str(run.new_tokens)], _PROMPT)


def _generate(model: Path, flags: Sequence[str], prompt: str) -> tuple[dict[str, Any], int]:
    """What `--json` printed, and the process's peak memory in bytes. Raises `EngineFault` with the child's error."""
    command = [sys.executable, "-c", _RUN, "generate", "--json", "--raw", "--ignore-eos", "-m", str(model), *flags]
    done = run_to_end(command, prompt)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["without a word"]
        raise EngineFault(f"a measured process ended with status {done.returncode}: {said[-1]}")
    answer, usage = done.stdout.splitlines()
    return json.loads(answer), json.loads(usage)["peak_bytes"]
