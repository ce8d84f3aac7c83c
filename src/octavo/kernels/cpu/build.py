"""Compiles the C kernels for this machine with the system's C compiler, once, into the user's cache directory."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from octavo.environment import cache_home

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
_SECONDS = 120
_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class BuildError(Exception):
    """Why there is no library, in a few words."""


def compiled_library(bind: Callable[[Path], T]) -> tuple[T, bool]:
    """What `bind` makes of the library's file, and whether the file had to be compiled.

    A file that is kept but cannot be loaded is compiled again. Where nothing can be kept, the file is gone on return,
    and only what is loaded stays. Raises `BuildError`, and what `bind` raises for a file just compiled.
    """
    compiler = find_compiler()
    name = f"kernels-{_fingerprint(compiler)}.so"
    try:
        directory = cache_home() / "octavo" / "kernels"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / name
        kept = _load_kept(bind, path)
        if kept is not None:
            return kept, False
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            fresh = Path(scratch) / name
            _compile(compiler, fresh)
            library = bind(fresh)  # before it is kept, so that nothing is kept that cannot be loaded
            _keep(fresh, path)
            return library, True
    except (OSError, RuntimeError):
        with tempfile.TemporaryDirectory(prefix="octavo-") as scratch:
            _compile(compiler, Path(scratch) / name)
            return bind(Path(scratch) / name), True


def compile_sources(compiler: list[str], machine_flags: tuple[str, ...], path: Path) -> str | None:
    """Make the kernels' library at `path`. What the compiler complained of first; None if there is a library now.

    Raises `BuildError` if the compiler cannot be run.
    """
    sources = [str(source) for source in sorted(_SOURCES.glob("*.c"))]
    command = [*compiler, *_FLAGS, *machine_flags, "-o", str(path), *sources, "-lm"]
    english = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS, env=english
        )
    except OSError as error:
        raise BuildError(f"{compiler[0]} could not be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler[0]} did not finish within {_SECONDS} seconds") from error
    if done.returncode == 0 and path.exists():
        return None
    said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return said[0].strip() if said else f"status {done.returncode}"


def find_compiler() -> list[str]:
    """The command of `CC`, or a usual compiler. Raises `BuildError` if there is none."""
    wanted = os.environ.get("CC", "").strip()
    for name in (wanted,) if wanted else ("cc", "gcc", "clang"):
        try:
            program, *arguments = shlex.split(name)  # e.g. CC="ccache gcc"
        except ValueError as error:
            raise BuildError(f"CC={name} is no command: {error}") from error
        found = shutil.which(program)
        if found is not None:
            return [found, *arguments]
    raise BuildError(f"no C compiler is installed (looked for {wanted or 'cc, gcc, clang'})")


def _compile(compiler: list[str], path: Path) -> None:
    """For this processor where the compiler can, else for any of its kind."""
    _LOG.info("compiling the CPU kernels for this machine, once (%s)", shlex.join(compiler))
    complaint = compile_sources(compiler, _machine_flags(), path)
    if complaint is not None:
        complaint = compile_sources(compiler, (), path)
    if complaint is not None:
        raise BuildError(f"{shlex.join(compiler)} failed: {complaint}")


def _load_kept(bind: Callable[[Path], T], path: Path) -> T | None:
    """None where there is no such file, or not any more because it was damaged."""
    if not path.exists():
        return None
    try:
        # A library that was cut short would end the process when it is loaded.
        if _digest(path) == _digest_path(path).read_text(encoding="ascii"):
            return bind(path)
    except (OSError, AttributeError, ValueError):
        pass
    path.unlink(missing_ok=True)
    return None


def _keep(fresh: Path, path: Path) -> None:
    """Move a library to where it is kept, whole or not at all, its digest before it."""
    digest = fresh.with_suffix(".digest")
    digest.write_text(_digest(fresh), encoding="ascii")
    for file, target in ((digest, _digest_path(path)), (fresh, path)):
        with file.open("rb") as written:
            os.fsync(written.fileno())
        file.replace(target)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _fingerprint(compiler: list[str]) -> str:
    """What the compiled code depends on: the sources, the flags, the compiler, and this processor's instructions."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    state = Path(compiler[0]).resolve().stat()
    flags = _FLAGS + _machine_flags()
    digest.update(repr((flags, compiler, state.st_size, state.st_mtime_ns, _instructions())).encode())
    return digest.hexdigest()[:32]


def _instructions() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return f"{platform.machine()} {platform.processor()}"
    lines = cpuinfo.read_text(errors="replace").splitlines()
    return "\n".join(line for line in dict.fromkeys(lines) if line.startswith(("flags", "Features", "CPU part")))


def _machine_flags() -> tuple[str, ...]:
    if platform.machine().lower() in ("x86_64", "amd64"):
        return ("-march=native", "-mprefer-vector-width=512")
    return ("-mcpu=native",)
