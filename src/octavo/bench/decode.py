"""Measures one sequence end to end: time to first token from process start, prefill and decode speed, peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.bench.peers import PeerSpeed, llama_cpp_installed, run_llama_cpp
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp, machine
from octavo.engine.profile import ProfileSettings
from octavo.environment import child_environment
from octavo.errors import EngineFault

_PROMPT = "The capital of France is"
_RUN = """
import json, resource, sys
from octavo.cli.main import invoke
invoke(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"peak_bytes": peak}))
"""


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """Another engine on the same prompts, in turn with ours; tokens per second as it counts them itself."""

    decode_tps: Spread
    prefill_tps: Spread


@dataclass(frozen=True, slots=True)
class DecodeBench:
    """Each over `repeats` fresh processes; `by_run` has the figures of each in their order."""

    model: str
    machine: str
    environment: dict[str, object]
    repeats: int
    prompt_tokens: int
    new_tokens: int
    first_token_s: Spread
    decode_tps: Spread
    prefill_tps: Spread
    peak_mib: Spread
    peers: dict[str, PeerFigures]
    by_run: dict[str, list[float]]

    def as_object(self) -> dict[str, object]:
        return {"bench": "decode", **asdict(self)}

    def charts(self) -> dict[str, dict[str, Spread]]:
        """The figures by unit and engine."""
        return {
            "decode, tokens/s": {"octavo": self.decode_tps} | {n: each.decode_tps for n, each in self.peers.items()},
            "prefill, tokens/s": {"octavo": self.prefill_tps} | {n: each.prefill_tps for n, each in self.peers.items()},
            "first token, s": {"octavo": self.first_token_s},
            "peak memory, MiB": {"octavo": self.peak_mib},
        }


def bench_decode(
    model: Path,
    flags: Sequence[str],
    *,
    threads: int,
    prompt_tokens: int,
    new_tokens: int,
    repeats: int,
    profiles: ProfileSettings | None = None,
    on_run: Callable[[int], None] = lambda run: None,
) -> DecodeBench:
    """Run `octavo generate` in fresh processes, as a person would: one token, then many, then a long prompt.

    One more before them is not counted.

    llama.cpp runs in turn with it, on the same token ids and threads, where the `xllamacpp` package is installed.
    With `profiles` one more process, which is not timed, writes a profile of its first steps.
    """
    environment = environment_stamp()
    first, decode, prefill, peak = [], [], [], []
    peer_runs: list[PeerSpeed] = []
    long_prompt = " ".join(["word"] * prompt_tokens)
    _generate(model, [*flags, "-n", "1"], _PROMPT)  # compiles kernels if need be, and brings the files into memory
    for run in range(repeats):
        on_run(run)
        started = time.perf_counter()
        _generate(model, [*flags, "-n", "1"], _PROMPT)
        first.append(time.perf_counter() - started)
        short, _ = _generate(model, [*flags, "-n", str(new_tokens)], _PROMPT)
        decode.append(short["timings"]["decode_tps"])
        answer, bytes_used = _generate(model, [*flags, "-n", "2"], long_prompt)
        prefill.append(answer["timings"]["prefill_tps"])
        counted = answer["usage"]["prompt_tokens"]
        peak.append(bytes_used / (1 << 20))
        if model.suffix == ".gguf" and llama_cpp_installed():
            prompts = short["prompt_token_ids"], answer["prompt_token_ids"]
            peer_runs.append(run_llama_cpp(model, threads, prompts[0], new_tokens, prompts[1]))
    if profiles is not None:
        where = ["--profile", str(profiles.directory), "--profile-steps", str(profiles.num_steps)]
        _generate(model, [*flags, *where, "-n", str(new_tokens)], _PROMPT)
    return DecodeBench(
        model=model.name,
        machine=machine(),
        environment=environment,
        repeats=repeats,
        prompt_tokens=counted,
        new_tokens=new_tokens,
        first_token_s=Spread.of(first),
        decode_tps=Spread.of(decode),
        prefill_tps=Spread.of(prefill),
        peak_mib=Spread.of(peak),
        peers={"llama.cpp": _figures(peer_runs)} if peer_runs else {},
        by_run={
            "first_token_s": first,
            "decode_tps": decode,
            "prefill_tps": prefill,
            "peak_mib": peak,
            "llama.cpp decode_tps": [each.decode_tps for each in peer_runs],
            "llama.cpp prefill_tps": [each.prefill_tps for each in peer_runs],
        },
    )


def _figures(runs: Sequence[PeerSpeed]) -> PeerFigures:
    return PeerFigures(Spread.of([run.decode_tps for run in runs]), Spread.of([run.prefill_tps for run in runs]))


def _generate(model: Path, flags: Sequence[str], prompt: str) -> tuple[dict[str, Any], int]:
    """What `--json` printed, and the process's peak memory in bytes. Raises `EngineFault` with the child's error."""
    command = [sys.executable, "-c", _RUN, "generate", "--json", "--raw", "--ignore-eos", "-m", str(model), *flags]
    done = subprocess.run(command, input=prompt, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineFault(f"a measured process failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
    answer, usage = done.stdout.splitlines()
    return json.loads(answer), json.loads(usage)["peak_bytes"]
