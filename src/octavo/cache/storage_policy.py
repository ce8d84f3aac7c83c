"""Which storage a sequence gets. Owns the decision and the measured table; knows neither models nor devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from octavo.config import StorageChoice
from octavo.errors import InvalidRequest
from octavo.step_batch import StorageKind

PREFERRED_STORAGE: Mapping[tuple[str, str], StorageKind] = MappingProxyType(
    {
        ("llama", "cpu"): StorageKind.PAGED,
        ("gemma3_text", "cpu"): StorageKind.PAGED,
        ("qwen2", "cpu"): StorageKind.PAGED,
    }
)
"""(family, device type) -> the storage that `octavo bench storage` decides for; steers `auto` alone.

An entry needs the document that this command printed:

* llama on cpu: docs/benchmark_results/2026-11-30-smollm2-storage.md
* gemma3_text on cpu: docs/benchmark_results/2026-11-30-gemma3-storage.md
* qwen2 on cpu: docs/benchmark_results/2026-11-30-qwen05-storage.md
"""


class StorageDecision(NamedTuple):
    """The storage and, in a few words for a start-up line, why."""

    kind: StorageKind
    reason: str


def resolve_storage(
    choice: StorageChoice,
    family: str,
    device: str,
    supports_paged: bool,
    may_run_several: bool,
    preferred_storage: Mapping[tuple[str, str], StorageKind] = PREFERRED_STORAGE,
) -> StorageDecision:
    """Decide the storage of a sequence of `family` (model type) on `device` (`cpu`, `cuda`).

    A family without paged support gets dense whatever was asked or measured. Else an explicit choice is obeyed;
    `auto` takes what was measured, and where nothing was, paged if more than one sequence may run, else dense.
    Raises `InvalidRequest` for an unknown choice.
    """
    if choice not in ("auto", "dense", "paged"):
        raise InvalidRequest(f"storage is {choice!r}; choose one of auto, dense, paged")
    if choice == "dense":
        return StorageDecision(StorageKind.DENSE, "dense was asked for")
    if not supports_paged:
        asked = "paged was asked for, but " if choice == "paged" else ""
        return StorageDecision(StorageKind.DENSE, f"{asked}{family} has no paged support")
    if choice == "paged":
        return StorageDecision(StorageKind.PAGED, "paged was asked for")
    measured = preferred_storage.get((family, device))
    if measured is not None:
        outcome = (
            "dense was measured to be faster" if measured is StorageKind.DENSE else "dense was measured, no faster"
        )
        return StorageDecision(measured, f"{outcome} for {family} on {device}")
    if may_run_several:
        return StorageDecision(StorageKind.PAGED, f"several sequences may run; not measured for {family} on {device}")
    return StorageDecision(StorageKind.DENSE, f"one sequence runs; not measured for {family} on {device}")
