"""Shared fixtures: where real checkpoints lie, and what to do when they are absent."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

# Test processes share the cores. A thread that spins at a barrier keeps its core from the one that it waits for. OpenMP
# reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Workers have a core each, so torch gets one thread in each unless a test asks for more.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.kernels.triton.interpreter import prepare_interpreter


def sees_gpu() -> bool:
    """Whether torch does. It takes seconds to import, also in the process that only hands out tests, so it is asked
    only where some kind of GPU has a device file.
    """
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return False
    import torch

    return torch.cuda.is_available()


# Triton reads this when it is imported, by whichever library: without a GPU its kernels run under its interpreter.
if not sees_gpu():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell that starts the tests in the background has them ignore interrupts, and every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected lives to the end: the garbage collector need not look through it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        if "triton.runtime.interpreter" in sys.modules:  # by modules of kernels that are interpreted
            prepare_interpreter()
        gc.freeze()
        gc.enable()


MODEL_FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "qwen05": "qwen2.5-coder-0.5b-instruct-q4.gguf",
}


def weights_path(alias: str) -> Path:
    """Path of a real checkpoint; skips the test if it is absent, fails it under OCTAVO_REQUIRE_WEIGHTS=1."""
    root = Path(os.environ.get("OCTAVO_MODELS", Path.home() / ".cache" / "octavo" / "models"))
    path = root / MODEL_FILES[alias]
    if not path.exists():
        reason = f"{path} is absent; `octavo pull {alias}` fetches it"
        if os.environ.get("OCTAVO_REQUIRE_WEIGHTS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return path
