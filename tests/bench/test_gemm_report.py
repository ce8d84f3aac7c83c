"""Timings of products of few rows as text and as an object."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from octavo.bench.gemm import CODE_FORMS, GemmCell, GemmRun, GemmShape
from octavo.bench.gemm_report import cell_line, report_lines
from octavo.bench.percentiles import Spread

SHAPE = GemmShape("model o", 2048, 1024)


def run_of(*cells):
    run = GemmRun([SHAPE], [1, 64], CODE_FORMS, list(cells), ceiling_gbps=4000.0)
    run.environment |= {"device": "a card", "torch": "2"}
    return run


def cell(rows, library, **ours):
    spreads = {name: Spread(value, value - 1, value + 1) for name, value in ours.items()}
    return GemmCell(SHAPE, rows, Spread(library, library, library), spreads, {"bf16": 4_000_000}, None)


def test_a_row_that_is_left_to_the_library_counts_as_equal_to_it():
    lines = list(report_lines(run_of(cell(1, 6.0, bf16=3.0, Q4_0=2.5), cell(64, 7.0, Q4_0=9.0))))
    assert lines[0] == "INCOMPLETE: nothing was measured" and lines[1].startswith("a card; read ceiling 4,000 GB/s")
    assert "torch" in lines[2] and "floor 1.0" in lines[4]
    assert lines[-2:] == [
        "| 1 | 6.0 (6.0 to 6.0) | 3.0 (2.0 to 4.0) | 2.5 (1.5 to 3.5) | 2.00 |",
        "| 64 | 7.0 (7.0 to 7.0) |  | 9.0 (8.0 to 10.0) | 1.00 |",
    ]


def test_a_run_becomes_an_object_of_flat_records():
    found = json.loads(json.dumps(run_of(cell(1, 6.0, bf16=3.0)).as_object()))["cells"][0]
    assert found["rows"] == 1
    assert found["ours_us"]["bf16"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert "3.00" in cell_line(cell(1, 6.0, bf16=3.0))
