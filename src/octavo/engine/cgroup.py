"""What the control groups of this process allow it: CPUs and memory. Version 2, and version 1 where it still rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _MemoryFiles:
    limit: str
    used: str
    reclaimable: str  # key in memory.stat


_VERSION_2 = _MemoryFiles("memory.max", "memory.current", "inactive_file")
_VERSION_1 = _MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def cpu_limit() -> int | None:
    """Whole CPUs (at least 1) that the tightest quota on this process is worth; None without a quota."""
    quotas = [read(group / "cpu.max").split() for group in _groups("")]
    quotas += [
        [read(group / "cpu.cfs_quota_us").strip(), read(group / "cpu.cfs_period_us").strip()]
        for group in _groups("cpu")
    ]
    limits = [
        int(q[0]) // int(q[1]) for q in quotas if len(q) == 2 and q[0].isdigit() and q[1].isdigit() and q[1] != "0"
    ]
    return max(1, min(limits)) if limits else None


def free_memory() -> int | None:
    """Bytes that may still be taken below the tightest limit on this process; None without a limit.

    File cache that is charged to a group counts as free: the kernel gives it back on demand.
    """
    rooms = [
        room
        for controller, files in (("", _VERSION_2), ("memory", _VERSION_1))
        for group in _groups(controller)
        if (room := _room(group, files)) is not None
    ]
    return max(0, min(rooms)) if rooms else None


def _room(group: Path, files: _MemoryFiles) -> int | None:
    limit, used = read(group / files.limit).strip(), read(group / files.used).strip()
    if not limit.isdigit() or not used.isdigit():
        return None
    stat = dict(line.split(" ", 1) for line in read(group / "memory.stat").splitlines() if " " in line)
    reclaimable = stat.get(files.reclaimable, "0").strip()
    return int(limit) - int(used) + (int(reclaimable) if reclaimable.isdigit() else 0)


def _groups(controller: str) -> Iterator[Path]:
    """Directories of this process's group and all above it, in version 1 those of `controller`.

    Inside a container the path that the kernel names may not be visible; what is then left is the mounted root,
    which stands for the container's own group.
    """
    top = ROOT / controller
    for line in read(OWN_GROUPS).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(","):
            continue
        own = top / path.lstrip("/")
        yield from (group for group in (own, *own.parents) if group != top and group.is_relative_to(top))
    yield top


def read(path: Path) -> str:
    """The file's text; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
