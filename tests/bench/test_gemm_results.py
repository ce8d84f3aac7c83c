"""Results of few-row products as tables."""

from __future__ import annotations

from scripts.gemm_results import tables


def spread(median):
    return {"median": median, "low": median - 1, "high": median + 1}


def test_a_weight_has_a_table_and_cells_that_torch_serves_stay_empty():
    shared = {"shape": "a model qkv", "n": 4096, "k": 2048, "weight_bytes": {"bf16": 16_000_000}}
    cells = [
        shared | {"rows": 1, "library_us": spread(8), "ours_us": {"bf16": spread(5), "bf16 exact": spread(6)}},
        shared | {"rows": 2, "library_us": spread(6), "ours_us": {"Q8_0": spread(9)}},
        shared | {"rows": 4, "library_us": spread(6), "ours_us": {"bf16": spread(8)}},
    ]
    lines = list(tables({"read_ceiling_gbps": 4000.0, "cells": cells}))
    assert lines[0] == "## a model qkv: 4,096 x 2,048, floor 4.0"
    assert lines[4] == "| 1 | 8.0 (7.0 to 9.0) | 5.0 (4.0 to 6.0) | 6.0 (5.0 to 7.0) |  |  |  |  | 1.60 |"
    assert lines[5] == "| 2 | 6.0 (5.0 to 7.0) |  |  |  |  | 9.0 (8.0 to 10.0) |  |  |"
    assert " ".join(lines[-2:]) == (
        "Ours serves bfloat16 in 2 of 3 cells, at 0.75 to 1.60 times torch's speed; slower in 1: a model qkv 4 0.75."
    )
