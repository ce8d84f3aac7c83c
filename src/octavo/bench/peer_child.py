"""A process of llama.cpp, by whichever of its Python packages is there: a task as JSON in, a line of JSON out.

Stands alone, and imports nothing of ours: the Python that it runs in may have the peer and no more.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BATCH = 512  # prompt tokens at once, as llama.cpp's own benchmark has it
WARM_UP = 8  # tokens


class LlamaCppPython:
    """`llama_cpp`: whole prompts, then token by token without sampling, as llama.cpp's own benchmark does it."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        from llama_cpp import Llama

        self._llama = Llama(
            model,
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            n_batch=BATCH,
            flash_attn=True,  # which llama.cpp itself turns on where the device can, and this package off
            verbose=False,
        )

    def prefill_tps(self, prompt: list[int]) -> float:
        self._llama.reset()
        began = time.perf_counter()
        self._llama.eval(prompt)
        return len(prompt) / (time.perf_counter() - began)

    def decode_tps(self, prompt: list[int], new_tokens: int) -> float:
        self._llama.reset()
        self._llama.eval(prompt)
        began = time.perf_counter()
        for index in range(new_tokens):
            self._llama.eval([prompt[index % len(prompt)]])
        return new_tokens / (time.perf_counter() - began)


class XLlamaCpp:
    """`xllamacpp`, a server in this process: greedy, by its own timings."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx = context
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(params)

    def prefill_tps(self, prompt: list[int]) -> float:
        return self._timing(prompt, 1, "prompt_per_second")

    def decode_tps(self, prompt: list[int], new_tokens: int) -> float:
        return self._timing(prompt, new_tokens, "predicted_per_second")

    def _timing(self, prompt: list[int], count: int, name: str) -> float:
        request = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        answer = self._server.handle_completions(request)
        found: float = (json.loads(answer) if isinstance(answer, str) else answer)["timings"][name]
        return found


def describe() -> dict[str, str]:
    """The package, its version, and what it was compiled for; nothing where there is none. llama_cpp goes first."""
    if find_spec("llama_cpp") is not None:
        import llama_cpp

        build = llama_cpp.llama_print_system_info().decode()
        return {"package": "llama-cpp-python", "version": llama_cpp.__version__, "build": build}
    if find_spec("xllamacpp") is not None:
        import xllamacpp

        return {"package": "xllamacpp", "version": xllamacpp.__version__, "build": xllamacpp.get_system_info()}
    return {}


def measure(package: str, model: str, threads: int, context: int, **asked: Any) -> dict[str, Any]:
    """Tokens/s of `prompts` in their order but the first, which warms up; or of decode, then of one long prompt."""
    kind = LlamaCppPython if package == "llama-cpp-python" else XLlamaCpp
    engine = kind(model, threads, context)
    if "prompts" in asked:
        found: dict[str, Any] = {"prefill_tps": [engine.prefill_tps(prompt) for prompt in asked["prompts"]][1:]}
    else:
        engine.decode_tps(asked["prompt"], WARM_UP)
        decode_tps = engine.decode_tps(asked["prompt"], asked["new_tokens"])
        found = {"decode_tps": decode_tps, "prefill_tps": engine.prefill_tps(asked["long_prompt"])}
    return {**found, "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """The largest resident set of this process. On Linux `getrusage` counts that of the one that started it, too."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    if found:
        return int(found[0]) << 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    task = json.load(sys.stdin)
    print(json.dumps(measure(**task) if task else describe()))
