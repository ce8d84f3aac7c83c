"""What a measurement must say of the machine and the software that gave it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import octavo

_PACKAGES = (
    *("octavo", "torch", "triton", "flashinfer-python", "llama-cpp-python", "xllamacpp"),
    *("httptools", "uvicorn", "fastapi"),
)


def environment_stamp() -> dict[str, object]:
    """Date, machine, system, versions, and the commit where the package runs from a git checkout (else None)."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "usable_cpus": usable_cpus(),
        "load_average": load_average(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "commit": commit(Path(octavo.__file__).resolve().parents[2]),
    }


def machine_line(stamp: Mapping[str, object]) -> str:
    """The machine, how busy it was before, and the commit: what a table says of its origin."""
    load = "" if stamp["load_average"] is None else f", load average {stamp['load_average']} before the run"
    return f"{stamp['machine']}{load}; octavo commit {stamp['commit'] or 'unknown'}"


def device_line(stamp: Mapping[str, object]) -> str:
    """`machine_line` after the name of the device, where it is another than the processor."""
    return f"{stamp['device']}; {machine_line(stamp)}" if "device" in stamp else machine_line(stamp)


def versions_line(stamp: Mapping[str, object]) -> str:
    """Python and the packages that figures depend on."""
    versions = stamp["versions"]
    assert isinstance(versions, Mapping)
    return ", ".join([f"Python {stamp['python']}", *(f"{name} {number}" for name, number in versions.items())])


def machine() -> str:
    """Processor, as the system names it, and how many CPUs there are."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = lines[0] if lines else name
    return f"{name}, {os.cpu_count()} CPUs, {platform.system()}"


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float | None:
    """Processes that ran or waited to run in the last minute, ours of that time included; None where it is unknown."""
    return round(os.getloadavg()[0], 2) if sys.platform != "win32" else None


def commit(root: Path) -> str | None:
    """The commit checked out at `root`, with `+changes` if tracked files differ from it; None if it is no checkout."""
    if not (root / ".git").exists():
        return None
    head, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--untracked-files=no")
    return None if head is None else head + ("+changes" if changes else "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
