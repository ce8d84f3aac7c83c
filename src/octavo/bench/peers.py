"""Other engines, measured beside ours in the same run where they are installed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# Prints one JSON line: its own timings of a short prompt with many new tokens, then of a long prompt.
_LLAMA_CPP = """
import json, sys
import xllamacpp
path, threads, prompt_ids, new_tokens, long_ids = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx = len(long_ids) + len(prompt_ids) + new_tokens + 64
params.n_parallel = 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)

def timings(prompt, count):
    request = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answer = server.handle_completions(request)
    return (json.loads(answer) if isinstance(answer, str) else answer)["timings"]

timings(prompt_ids, 8)
decode = timings(prompt_ids, new_tokens)["predicted_per_second"]
prefill = timings(long_ids, 2)["prompt_per_second"]
print(json.dumps({"decode_tps": decode, "prefill_tps": prefill}))
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
    """One fresh process of llama.cpp over a GGUF file."""
    task = json.dumps([str(model), threads, prompt_ids, new_tokens, long_ids])
    done = subprocess.run(
        [sys.executable, "-c", _LLAMA_CPP, task],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return PeerSpeed(**json.loads(done.stdout.splitlines()[-1]))
