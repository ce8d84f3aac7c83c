"""Every public bug report of the table is replayed, by tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cases.replay_table import E_SERVED, KERNELS, KINDS, REPLAYS, A, B, D, E, F, G, H, J

TESTS = Path(__file__).parents[1]


def test_every_report_of_these_kinds_is_in_the_table() -> None:
    assert list(REPLAYS) == [report for reports in KINDS.values() for report in reports]


@pytest.mark.parametrize("report", REPLAYS)
def test_a_report_is_replayed_by_the_tests_that_the_table_names(report: str) -> None:
    for file, names in REPLAYS[report].items():
        defined = set(re.findall(r"^def (test_\w+)\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE))
        assert set(names) <= defined


@pytest.mark.parametrize("file", [A, B, D, E, E_SERVED, F, G, H, KERNELS, J])
def test_every_replay_is_in_the_table(file: str) -> None:
    defined = re.findall(r"^def (test_(r[0-9]+)_\w+)\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert defined
    for name, report in defined:
        assert name in REPLAYS[report.upper()][file]
