"""Measures one sequence end to end: time to first token from process start, prefill and decode speed, peak memory."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_PROMPT = "The capital of France is"
_RUN = """
import json, resource, sys
from octavo.cli.main import invoke
invoke(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"peak_bytes": peak}))
"""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median of several runs with the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:,.2f} ({self.low:,.2f} to {self.high:,.2f})"


@dataclass(frozen=True, slots=True)
class DecodeBench:
    """Each over `repeats` fresh processes."""

    model: str
    machine: str
    repeats: int
    prompt_tokens: int
    new_tokens: int
    first_token_s: Spread
    decode_tps: Spread
    prefill_tps: Spread
    peak_mib: Spread

    def as_object(self) -> dict[str, object]:
        return asdict(self)


def bench_decode(
    model: Path,
    flags: Sequence[str],
    *,
    prompt_tokens: int,
    new_tokens: int,
    repeats: int,
    on_run: Callable[[int], None] = lambda run: None,
) -> DecodeBench:
    """Run `octavo generate` in fresh processes, as a person would: one token, then many, then a long prompt."""
    first, decode, prefill, peak = [], [], [], []
    long_prompt = "word " * prompt_tokens
    for run in range(repeats):
        on_run(run)
        started = time.perf_counter()
        _generate(model, [*flags, "-n", "1", "-p", _PROMPT])
        first.append(time.perf_counter() - started)
        answer, _ = _generate(model, [*flags, "-n", str(new_tokens), "-p", _PROMPT])
        decode.append(answer["timings"]["decode_tps"])
        answer, bytes_used = _generate(model, [*flags, "-n", "2", "-p", long_prompt])
        prefill.append(answer["timings"]["prefill_tps"])
        counted = answer["usage"]["prompt_tokens"]
        peak.append(bytes_used / (1 << 20))
    return DecodeBench(
        model=model.name,
        machine=machine(),
        repeats=repeats,
        prompt_tokens=counted,
        new_tokens=new_tokens,
        first_token_s=Spread.of(first),
        decode_tps=Spread.of(decode),
        prefill_tps=Spread.of(prefill),
        peak_mib=Spread.of(peak),
    )


def _generate(model: Path, flags: Sequence[str]) -> tuple[dict, int]:  # type: ignore[type-arg]
    command = [sys.executable, "-c", _RUN, "generate", "--json", "--raw", "--ignore-eos", "-m", str(model), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer, usage = done.stdout.splitlines()
    return json.loads(answer), json.loads(usage)["peak_bytes"]


def machine() -> str:
    """Processor, as the system names it, and how many CPUs there are."""
    import os

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = lines[0] if lines else name
    return f"{name}, {os.cpu_count()} CPUs, {platform.system()}"
