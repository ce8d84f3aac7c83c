"""Compiles the C kernels for this machine with the system's C compiler, once, into the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from octavo.environment import cache_home

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
_SECONDS = 120


class BuildError(Exception):
    """Why there is no library, in a few words."""


def compiled_library() -> tuple[Path, bool]:
    """The library's file, and whether it was there already. Raises `BuildError`."""
    compiler = _compiler()
    path = _directory() / f"kernels-{_fingerprint(compiler)}.so"
    if path.exists():
        return path, True
    _compile(compiler, path)
    return path, False


def _compiler() -> str:
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise BuildError(f"no C compiler is installed (looked for {wanted or 'cc, gcc, clang'})")


def _directory() -> Path:
    try:
        directory = cache_home() / "octavo" / "kernels"
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise BuildError(f"no directory for the compiled kernels: {error}") from error
    return directory


def _fingerprint(compiler: str) -> str:
    """What the compiled code depends on: the sources, the flags, the compiler, and this processor's instructions."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    state = Path(compiler).resolve().stat()
    digest.update(repr((_FLAGS, compiler, state.st_size, state.st_mtime_ns, _instructions())).encode())
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


def _compile(compiler: str, path: Path) -> None:
    sources = [str(source) for source in sorted(_SOURCES.glob("*.c"))]
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        out = Path(scratch) / path.name
        command = [compiler, *_FLAGS, *_machine_flags(), "-o", str(out), *sources, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{compiler} could not be run: {error}") from error
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise BuildError(f"{compiler} failed: {said[0] if said else f'status {done.returncode}'}")
        out.replace(path)
