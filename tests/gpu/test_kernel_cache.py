"""Compiled kernels lie on disk, by dtype and version, so that a process compiles only what none before it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

LAUNCH = """
import sys
import torch
from triton.runtime import cache
if len(sys.argv) > 2:
    assert cache.__version__, "which is part of a kernel's key"
    cache.__version__ = sys.argv[2]
from octavo.kernels.triton.fused_rows import gate
dtype = getattr(torch, sys.argv[1])
gate(torch.ones(2, 64, dtype=dtype, device="cuda"), False, dtype)
torch.cuda.synchronize()
"""


def compiled(directory: Path, *arguments: str) -> dict[str, int]:
    """Launch a kernel in a process of its own; when each compiled kernel in the cache was written."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run(
        [sys.executable, "-c", LAUNCH, *arguments],
        env={**environment, "TRITON_CACHE_DIR": str(directory)},
        check=True,
        timeout=120,
    )
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns
        for ending in ("cubin", "hsaco")
        for path in directory.rglob(f"*.{ending}")
    }


def test_a_kernel_is_compiled_once_for_each_dtype_and_version(tmp_path: Path) -> None:
    first = compiled(tmp_path, "float16")
    assert len(first) == 1
    assert compiled(tmp_path, "float16") == first, "it was compiled again"
    for number, other in enumerate([("bfloat16",), ("float16", "0.0.0")], start=2):
        found = compiled(tmp_path, *other)
        assert len(found) == number and first.items() <= found.items()
