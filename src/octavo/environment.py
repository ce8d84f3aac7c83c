"""What the environment says: where a user's caches lie, and what processes that we start for ourselves are given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# What a flag's variable sets is given to them as an argument or not at all; these are no flags.
_KEPT = ("OCTAVO_MODELS", "OCTAVO_CPU_KERNELS", "OCTAVO_PAGED_ATTENTION_NATIVE", "OCTAVO_SDPA_DETERMINISTIC")


def have_threads_wait() -> None:
    """Have idle threads of OpenMP spin for about 0.1 ms and then wait, unless the environment says how. Works until
    torch is loaded.

    GNU's, which torch brings, otherwise spin for milliseconds at the end of every parallel region, and so keep a core
    from the very thread that they wait for. Beside other work, loading a model then takes ten times as long.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def child_environment() -> dict[str, str]:
    """This process's environment without the variables that would set flags of `octavo`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_") or name in _KEPT}


def cache_home() -> Path:
    """The user's cache directory. Raises `RuntimeError` if no home directory is known."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():  # the XDG specification has relative values ignored
        return Path(xdg)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    return Path.home() / ".cache"
