"""Has a grammar checked by a process of its own, which it may break or keep busy without harm."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict

from octavo.environment import child_environment
from octavo.errors import EngineFault, InvalidRequest
from octavo.grammar.limits import CHECK_BYTES, CHECK_CPU_S, CHECK_WALL_S
from octavo.grammar_spec import GrammarSpec

_COMMAND = ("-P", "-m", "octavo.grammar.check_process")


def checked(spec: GrammarSpec, wall_s: float = CHECK_WALL_S) -> str:
    """The grammar in llguidance's form. Blocks; may be called by any thread.

    Raises `InvalidRequest` if it cannot be used, or cannot be checked within the bounds; `EngineFault` if the checking
    process cannot be run.
    """
    environment = child_environment() | {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            [sys.executable, *_COMMAND],
            input=json.dumps(asdict(spec)).encode(),
            capture_output=True,
            timeout=wall_s,
            env=environment,
            check=False,
            start_new_session=True,  # a terminal's interrupt is the parent's
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidRequest(f"the grammar took more than {wall_s:g} s to compile; simplify it") from error
    except OSError as error:
        raise EngineFault(f"grammars cannot be checked: no process can be started ({error.strerror})") from error
    if done.returncode == 0:
        answer: dict[str, str] = json.loads(done.stdout)
        if "error" in answer:
            raise InvalidRequest(answer["error"])
        return answer["grammar"]
    raise _broken(done)


def _broken(done: subprocess.CompletedProcess[bytes]) -> Exception:
    """What to raise for a process that did not come to an answer."""
    code = -done.returncode
    if code in (signal.SIGXCPU, signal.SIGKILL):
        return InvalidRequest(f"the grammar took more than {CHECK_CPU_S} s to compile; simplify it")
    if code in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        return InvalidRequest(
            f"the grammar is nested too deeply, or takes more than {CHECK_BYTES >> 20} MiB to compile; simplify it"
        )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if lines and lines[-1].startswith("MemoryError"):
        return InvalidRequest(f"the grammar takes more than {CHECK_BYTES >> 20} MiB to compile; simplify it")
    return EngineFault(f"grammars cannot be checked: {lines[-1] if lines else f'exit status {done.returncode}'}")
