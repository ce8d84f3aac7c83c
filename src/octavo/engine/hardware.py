"""What this process may use: threads, memory, device, and the compute dtype that suits them."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import torch

from octavo.config import DeviceChoice, DtypeChoice
from octavo.engine import cgroup
from octavo.errors import InvalidRequest
from octavo.kernels.cpu import library

_MEMINFO = Path("/proc/meminfo")
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(choice: DeviceChoice) -> torch.device:
    """`auto` takes a CUDA device if torch sees one. Raises `InvalidRequest` if `cuda` was asked for and is absent."""
    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        raise InvalidRequest("device is 'cuda', but torch sees no CUDA device here; use --device cpu")
    return torch.device("cuda" if available and choice != "cpu" else "cpu")


def choose_dtype(choice: DtypeChoice, device: torch.device, *, narrow_weights: bool = False) -> torch.dtype:
    """`auto` is bfloat16 where the device multiplies it in hardware, else float32.

    With `narrow_weights` a CPU multiplies quantised weights by kernels of our own, which need no such hardware.
    """
    if choice != "auto":
        return _DTYPES[choice]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if narrow_weights or _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16() -> bool:
    if platform.machine().lower() in ("x86_64", "amd64"):
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def instruction_set(device: torch.device) -> str:
    """What products are computed with, for a person: a CPU's instructions, or a GPU's name and compute capability."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
    compiled = library.load()
    if compiled.functions is not None:
        return compiled.instructions
    return f"{torch.backends.cpu.get_cpu_capability().lower()}, by torch alone"


def choose_threads(choice: int | None) -> int:
    """CPU threads: as asked, else what the scheduler's affinity mask and the cgroup's quota allow."""
    allowed = _affinity()
    quota = cgroup.cpu_limit()
    if quota is not None:
        allowed = min(allowed, quota)
    if choice is None:
        return allowed
    if choice > 4 * allowed:
        raise InvalidRequest(f"threads is {choice}; this process may use {allowed} CPUs, give at most {4 * allowed}")
    return choice


def available_memory(device: torch.device) -> int:
    """Bytes that a new allocation may take: on a CPU what the system and the cgroup have left, else the device's."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    limit = cgroup.free_memory()
    return _system_memory() if limit is None else min(_system_memory(), limit)


def large_page_bytes() -> int:
    """Bytes that a mapping which asks for large pages is rounded up to; 0 where it gets none."""
    chosen = cgroup.read(_LARGE_PAGES).partition("[")[2].partition("]")[0]
    return 2 << 20 if chosen in ("always", "madvise") else 0


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _system_memory() -> int:
    for line in cgroup.read(_MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    if sys.platform != "win32" and "SC_PHYS_PAGES" in os.sysconf_names:
        return int(os.sysconf("SC_PHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE")) // 2
    return 8 << 30
