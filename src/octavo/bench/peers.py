"""Other engines, measured beside ours in the same run where they are installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from octavo.errors import EngineFault

_START = """
import json, sys
import xllamacpp
path, threads, context, *task = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx = context
params.n_parallel = 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)

def timings(prompt, count):
    request = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answer = server.handle_completions(request)
    return (json.loads(answer) if isinstance(answer, str) else answer)["timings"]
"""
# Each prints one JSON line of its own timings: a short prompt with many new tokens, then a long prompt; or prompts
# one after the other, of which the first warms up.
_DECODE = """
prompt_ids, new_tokens, long_ids = task
timings(prompt_ids, 8)
decode = timings(prompt_ids, new_tokens)["predicted_per_second"]
prefill = timings(long_ids, 2)["prompt_per_second"]
print(json.dumps({"decode_tps": decode, "prefill_tps": prefill}))
"""
_PREFILL = """
print(json.dumps([timings(prompt, 1)["prompt_per_second"] for prompt in task[0]][1:]))
"""


@dataclass(frozen=True, slots=True)
class PeerSpeed:
    """Tokens per second, as the peer itself counts them."""

    decode_tps: float
    prefill_tps: float


def llama_cpp_installed() -> bool:
    """True if the `xllamacpp` package, llama.cpp as a library, can be imported."""
    return find_spec("xllamacpp") is not None


def run_llama_cpp(model: Path, threads: int, prompt_ids: list[int], new_tokens: int, long_ids: list[int]) -> PeerSpeed:
    """One fresh process of llama.cpp over a GGUF file. Raises `EngineFault` if it fails."""
    context = len(long_ids) + len(prompt_ids) + new_tokens + 64
    return PeerSpeed(**_run(_DECODE, [str(model), threads, context, prompt_ids, new_tokens, long_ids]))


def prefill_llama_cpp(model: Path, threads: int, prompts: Sequence[list[int]]) -> list[float]:
    """Tokens/s of every prompt but the first, which warms up, by a fresh process. Raises `EngineFault` if it fails."""
    context = max(map(len, prompts)) + 64
    found: list[float] = _run(_PREFILL, [str(model), threads, context, list(prompts)])
    return found


def _run(script: str, task: list[object]) -> Any:
    command = [sys.executable, "-c", _START + script, json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["without a word"]
        raise EngineFault(f"llama.cpp ended with status {done.returncode}: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
