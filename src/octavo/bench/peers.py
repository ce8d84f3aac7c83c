"""llama.cpp, measured beside ours in the same run: where it is found, and its processes. Compares nothing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from octavo.bench import peer_child
from octavo.bench.child_process import run_to_end
from octavo.errors import EngineFault, InvalidRequest

_MODULES = ("llama_cpp", "xllamacpp")
_DESCRIBED = {"package", "version", "build"}
_INSTRUCTIONS = re.compile(r"(\w+) = [1-9]")


@dataclass(frozen=True, slots=True)
class PeerSpeed:
    """Of one process: tokens per second, and the most memory that it held."""

    decode_tps: float
    prefill_tps: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class PrefillFigures:
    """Of one process, ours or a peer's: tokens per second of each prompt, and the most memory that it held."""

    tps: list[float]
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Peer:
    """llama.cpp as `package` of a Python. `build` is what it says of itself: the instructions it was compiled for."""

    python: str
    package: str
    version: str
    build: str

    @property
    def line(self) -> str:
        return f"{self.package} {self.version}, compiled for {' '.join(_INSTRUCTIONS.findall(self.build)) or 'no more'}"

    def as_object(self) -> dict[str, str]:
        return {"package": self.package, "version": self.version, "build": self.build.strip()}

    def decode(
        self, model: Path, threads: int, prompt: list[int], new_tokens: int, long_prompt: list[int]
    ) -> PeerSpeed:
        """One fresh process over a GGUF file. Raises `EngineFault` if it fails."""
        context = len(long_prompt) + len(prompt) + new_tokens + 64
        asked = {"prompt": prompt, "new_tokens": new_tokens, "long_prompt": long_prompt}
        return PeerSpeed(**self._run(model, threads, context, asked))

    def prefill(self, model: Path, threads: int, prompts: Sequence[list[int]]) -> PrefillFigures:
        """Of every prompt but the first, which warms up, by a fresh process. Raises `EngineFault` if it fails."""
        found = self._run(model, threads, max(map(len, prompts)) + 64, {"prompts": list(prompts)})
        return PrefillFigures(found["prefill_tps"], found["peak_bytes"])

    def _run(self, model: Path, threads: int, context: int, asked: Mapping[str, object]) -> dict[str, Any]:
        task = {"package": self.package, "model": str(model), "threads": threads, "context": context, **asked}
        return _ask(self.python, task)


def find_peer(model: Path, python: Path | None) -> Peer | None:
    """What `python` has, or this one; llama-cpp-python goes first. None if there is nothing to measure `model` beside.

    Raises `InvalidRequest` if a Python was named, and that is so.
    """
    if model.suffix != ".gguf":
        if python is not None:
            raise InvalidRequest(f"{model.name} is no GGUF file, which is all that llama.cpp reads; no --peer-python")
        return None
    if python is None and all(find_spec(name) is None for name in _MODULES):
        return None
    where = sys.executable if python is None else _as_named(python)
    try:
        found = _ask(where, {})
    except OSError as error:
        raise InvalidRequest(f"--peer-python {where!r} cannot be run ({error.strerror}); name a Python") from error
    except EngineFault as fault:
        raise InvalidRequest(f"--peer-python {where!r} gives no llama.cpp: {fault}; name another Python") from fault
    if not found:
        raise InvalidRequest(f"--peer-python {where!r} has no llama.cpp; install llama-cpp-python or xllamacpp there")
    if found.keys() != _DESCRIBED:
        raise InvalidRequest(f"--peer-python {where!r} is no Python: it says {found}; name a Python")
    return Peer(where, **found)


def _as_named(python: Path) -> str:
    """What there is in the working directory goes before what PATH has by that name: a `Path` has lost its `./`."""
    return str(python.absolute()) if python.exists() else str(python)


def _ask(python: str, task: Mapping[str, object]) -> dict[str, Any]:
    command = [python, "-c", Path(peer_child.__file__).read_text(encoding="utf-8")]
    done = run_to_end(command, json.dumps(task))
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["without a word"]
        raise EngineFault(f"llama.cpp ended with status {done.returncode}: {said[-1]}")
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise EngineFault(f"llama.cpp's process ended with {last[:80]!r} as its answer, which is no object of JSON")
    return found
