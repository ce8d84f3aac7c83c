"""The storage resolver, case by case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.cache.storage_policy import PREFERRED_STORAGE, resolve_storage
from octavo.errors import InvalidRequest
from octavo.step_batch import StorageKind

ROOT = Path(__file__).resolve().parents[2]
DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED
MEASURED = {("llama", "cpu"): DENSE, ("qwen3", "cpu"): PAGED}


@pytest.mark.parametrize(
    ("choice", "family", "device", "supports_paged", "several", "kind", "reason"),
    [
        ("dense", "llama", "cpu", True, True, DENSE, "dense was asked for"),
        ("paged", "llama", "cpu", True, False, PAGED, "paged was asked for"),
        ("paged", "llama", "cpu", False, True, DENSE, "paged was asked for, but llama has no paged support"),
        ("auto", "qwen3", "cpu", False, True, DENSE, "qwen3 has no paged support"),
        ("auto", "llama", "cpu", True, True, DENSE, "dense was measured to be faster for llama on cpu"),
        ("auto", "qwen3", "cpu", True, False, PAGED, "dense was measured, no faster for qwen3 on cpu"),
        ("auto", "llama", "cuda", True, True, PAGED, "several sequences may run; not measured for llama on cuda"),
        ("auto", "llama", "cuda", True, False, DENSE, "one sequence runs; not measured for llama on cuda"),
    ],
)
def test_storage_follows_capability_then_choice_then_measurement_then_concurrency(
    choice: str, family: str, device: str, supports_paged: bool, several: bool, kind: StorageKind, reason: str
) -> None:
    decision = resolve_storage(choice, family, device, supports_paged, several, MEASURED)  # type: ignore[arg-type]
    assert decision == (kind, reason)


def test_an_unknown_choice_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="'ring'; choose one of auto, dense, paged"):
        resolve_storage("ring", "llama", "cpu", True, True)  # type: ignore[arg-type]


def test_every_preferred_storage_is_the_outcome_of_a_document_that_the_table_names() -> None:
    written = (ROOT / "src" / "octavo" / "cache" / "storage_policy.py").read_text(encoding="utf-8")
    named = set(re.findall(r"docs/benchmark_results/\S+\.md", written))
    documents = [(ROOT / name).read_text(encoding="utf-8") for name in sorted(named)]
    for (family, device), kind in PREFERRED_STORAGE.items():
        entry = f'    ("{family}", "{device}"): StorageKind.{kind.name},'
        assert any(entry in document.splitlines() for document in documents), entry
