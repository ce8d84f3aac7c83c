"""What structured output costs: its order, its arithmetic, and what is kept of a run that breaks off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import grammar
from octavo.errors import EngineFault
from tests.cli.conftest import Run

SMALL = ("--batch", 2, "--new-tokens", 4, "--rounds", 3)


class Decodes:
    """In place of the engine: 100 tokens/s free and 80 held in the first round, 10 more in each that follows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int = 99, error: BaseException | None = None) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self._fails_at, self._error = fails_at, error
        monkeypatch.setattr(grammar, "_decode", self._decode)

    def _decode(self, core: Any, held: Any, batch: int, new_tokens: int) -> float:
        if len(self.asked) == self._fails_at and self._error is not None:
            raise self._error
        name = "free" if held is None else "held"
        self.asked.append((name, batch, new_tokens))
        before = sum(each[0] == name for each in self.asked[1:]) - 1
        return (100.0 if held is None else 80.0) + 10 * before


def test_both_take_turns_in_changing_order_and_the_cost_is_of_one_round(
    octavo: Run, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decodes = Decodes(monkeypatch)
    done = octavo("bench", "grammar", "-m", gguf, *SMALL, "--json")
    assert done.status == 0, done.err
    assert [each[0] for each in decodes.asked] == ["held", "free", "held", "held", "free", "free", "held"]
    assert set(decodes.asked[1:]) == {("free", 2, 4), ("held", 2, 4)}
    found = json.loads(done.out)
    assert (found["complete"], found["rounds"]) == (True, 3)
    assert found["by_round"]["free_tps"] == [100.0, 110.0, 120.0]
    assert found["cost_percent"] == {
        "median": pytest.approx(100 * 20 / 110),
        "low": pytest.approx(100 * 20 / 120),
        "high": pytest.approx(20.0),
    }
    assert found["environment"]["versions"]["torch"]


@pytest.mark.parametrize(
    ("error", "status", "said"), [(EngineFault("it broke"), 1, "it broke"), (KeyboardInterrupt(), 130, "interrupted")]
)
def test_rounds_before_a_failure_are_kept_with_its_arm_and_round(
    octavo: Run, gguf: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, said: str
) -> None:
    Decodes(monkeypatch, 4, error)
    done = octavo("bench", "grammar", "-m", gguf, *SMALL)
    assert done.status == status
    problem = f"free text, round 2 of 3: {said}"
    first, head, _, *rows = done.out.splitlines()
    assert first == f"INCOMPLETE: {problem}"
    assert head.startswith("llama.gguf; ") and "octavo commit" in head and "torch" in head
    assert rows[-1] == "cost          20.00 (20.00 to 20.00) %"
    if status == 1:
        assert done.err.splitlines()[-1] == f"octavo: error: {problem}"


def test_a_small_run_decodes_with_and_without_the_schema(octavo: Run, gguf: Path) -> None:
    done = octavo("bench", "grammar", "-m", gguf, "--batch", 2, "--new-tokens", 40, "--rounds", 1, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["free_tps"]["median"] > 0 and found["held_tps"]["median"] > 0


def test_counts_below_one_are_refused_before_the_model_is_loaded(octavo: Run, gguf: Path, loads_nothing: None) -> None:
    done = octavo("bench", "grammar", "-m", gguf, "--rounds", 0)
    assert done.status == 2 and "rounds is 0; it must be at least 1" in done.error
