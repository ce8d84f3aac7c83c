"""What `--exact` costs: the turns, the arithmetic of cost and chance, and what is kept of a run that breaks off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import exact_cost
from octavo.bench.exact_cost import ExactCell, ExactCostRun, bench_exact_cost
from octavo.bench.kernel_loads import parse_loads
from octavo.bench.outcome import Outcome
from octavo.config import EngineConfig
from octavo.errors import EngineFault, InvalidRequest
from tests.bench.test_engine_decode import CONFIG
from tests.cli.conftest import Run

HALF = EngineConfig(device="cpu", dtype="bfloat16", threads=1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


class Engines:
    """In place of `EngineDecode`: a step takes 2 ms without exact results, and 3 ms with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: Callable[[int], None] = lambda number: None) -> None:
        self.made: list[tuple[bool | None, bool]] = []  # asked for, and what the weights were loaded for
        self._at = at
        monkeypatch.setattr(exact_cost, "EngineDecode", self._make)

    def _make(self, loaded: Any, load: Any, config: EngineConfig, new_tokens: int) -> Engines:
        self.made.append((config.exact, loaded.plan.exact.holds))
        self._at(len(self.made))
        return self

    def warm_up(self) -> None:
        pass

    def run(self, new_tokens: int) -> tuple[int, int, float]:
        return 2 * new_tokens, new_tokens, new_tokens * (3e-3 if self.made[-1][0] else 2e-3)


def test_each_load_has_two_turns_with_and_two_without_one_after_the_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, told = Engines(monkeypatch), []
    run = ExactCostRun(directory, parse_loads("1x9,2x4"), 6, 2, HALF)
    bench_exact_cost(run, told.append)
    assert engines.made == [(False, False), (True, True)] * 4
    assert told == run.cells and [cell.load.name for cell in told] == ["1x9", "2x4"]
    assert all(len(rounds) == 2 for cell in told for rounds in cell.step_ms)
    assert told[0].cost == pytest.approx(50) and told[0].null("with") == pytest.approx(0)


def test_cost_is_of_both_turns_and_chance_of_the_second_against_the_first() -> None:
    turns = ((1.0, 1.0, 1.0), (1.2, 1.3, 1.4), (1.1, 1.1, 1.1), (1.1, 1.3, 1.5))
    cell = ExactCell(parse_loads("1x9")[0], turns)
    assert (cell.spread("without").median, cell.spread("with").median) == (1.05, 1.3)
    found = cell.as_object()
    assert found["cost_percent"] == 23.81
    assert found["null_percent"] == {"with": 0.0, "without": 10.0}
    assert found["step_ms_by_turn"] == [list(each) for each in turns]


def test_a_small_run_through_the_engine_as_json(octavo: Run, directory: Path) -> None:
    small = ("--loads", "2x6", "--new-tokens", 4, "--repeats", 1, "--device", "cpu", "--dtype", "bfloat16")
    done = octavo("bench", "decode", "--random-weights", "--config", directory, *small, "--exact-cost", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["complete"], found["problem"], found["model"]) == (True, None, directory.name)
    (cell,) = found["cells"]
    assert all(cell["step_ms"][name]["median"] > 0 for name in ("with", "without"))
    assert [len(rounds) for rounds in cell["step_ms_by_turn"]] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("error", "status", "problem"),
    [
        (EngineFault("no room"), 1, "2x4, turn 2 of 4, with --exact: no room"),
        (KeyboardInterrupt(), 130, "2x4, turn 2 of 4, with --exact: interrupted"),
    ],
)
def test_what_breaks_off_keeps_whole_loads_and_says_where(
    octavo: Run, directory: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, problem: str
) -> None:
    def fail(number: int) -> None:
        if number == 6:
            raise error

    Engines(monkeypatch, fail)
    asked = ("bench", "decode", "--random-weights", "--config", directory, "--loads", "1x9,2x4", "--dtype", "bfloat16")
    done = octavo(*asked, "--device", "cpu", "--exact-cost")
    assert done.status == status
    head, *_, last = done.out.splitlines()
    assert head == f"INCOMPLETE: {problem}"
    assert last.startswith("| 1x9 | 2.00 (2.00 to 2.00) | 3.00 (3.00 to 3.00) | +50.0 % | +0.0 % | +0.0 % |")
    if status == 1:
        assert done.err.splitlines()[-1] == f"octavo: error: {problem}"


def test_a_dtype_that_cannot_be_exact_is_refused_before_anything_is_measured(directory: Path) -> None:
    run = ExactCostRun(directory, parse_loads("1x9"), 6, 2, EngineConfig(device="cpu", dtype="float32", threads=1))
    with pytest.raises(InvalidRequest, match="float32 products on cpu depend on the number of rows"):
        bench_exact_cost(run, lambda cell: None)
    assert run.cells == [] and not run.outcome.complete


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--exact-cost",), "--exact-cost needs --random-weights"),
        (("--random-weights", "--config", ".", "--exact-cost", "--no-exact"), "give no --exact, no --requests"),
        (("--random-weights", "--config", ".", "--exact-cost", "--requests", 2), "give no --exact, no --requests"),
    ],
    ids=str,
)
def test_the_cost_is_not_asked_for_together_with_what_it_would_ignore(
    octavo: Run, arguments: tuple[Any, ...], fragment: str
) -> None:
    done = octavo("bench", "decode", *arguments)
    assert done.status == 2
    assert fragment in done.error


def test_an_outcome_says_what_ended_it_even_if_that_says_nothing_itself() -> None:
    outcome = Outcome()
    with pytest.raises(AssertionError), outcome:
        raise AssertionError
    assert outcome.as_object() == {"complete": False, "problem": "AssertionError"}
    with outcome:
        pass
    assert outcome.as_object() == {"complete": True, "problem": None} and outcome.lines() == []
