"""The environment of processes that we start for ourselves."""

from __future__ import annotations

import os

# What a flag's variable sets is given to them as an argument or not at all; these are no flags.
_KEPT = ("OCTAVO_MODELS", "OCTAVO_PAGED_ATTENTION_NATIVE", "OCTAVO_SDPA_DETERMINISTIC")


def child_environment() -> dict[str, str]:
    """This process's environment without the variables that would set flags of `octavo`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_") or name in _KEPT}
