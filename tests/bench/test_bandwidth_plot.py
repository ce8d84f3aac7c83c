"""Timings as bandwidths: by the bytes that a kernel really reads, and as a picture."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("matplotlib")

from octavo.bench.bandwidth_plot import draw_result, gemm_charts, kernel_charts

KERNELS = [
    {
        "shape": "Hq16 Hkv8 D128",
        "load": load,
        "kv_bytes": size,
        "ours_us": {"f16": 10.0, "q8_0": 8.0},
        "peers_us": {"dense sdpa": 20.0},
        "spread_us": {"f16": [8.0, 16.0], "q8_0": [8.0, 8.0], "dense sdpa": [20.0, 20.0]},
    }
    for load, size in (("8x4K", 32_000_000), ("1x1K", 16_000_000))
]
SPREAD = {"median": 4.0, "low": 2.0, "high": 8.0}
PRODUCTS = [
    {
        "shape": f"model {name}",
        "rows": rows,
        "library_us": SPREAD,
        "ours_us": {"bf16 exact": SPREAD, "Q4_0": SPREAD},
        "weight_bytes": {"bf16": 8_000_000, "Q4_0": 2_000_000},
    }
    for name in ("o", "down")
    for rows in (1, 64)
]


def test_loads_stand_in_the_order_of_their_kv_and_a_codec_counts_what_it_stores():
    (chart,) = kernel_charts(KERNELS)
    assert (chart.title, chart.labels) == ("Hq16 Hkv8 D128", ["1x1K", "8x4K"])
    big = chart.lines["f16"][1]
    assert (big.median, big.low, big.high) == (3200.0, 2000.0, 4000.0)
    assert chart.lines["dense sdpa"][0].median == 800.0
    assert chart.lines["q8_0"][0].median == pytest.approx(2000.0 * (4 * 34) / 256)  # 32 codes and a scale: 34 bytes


def test_a_product_reads_its_weight_as_stored():
    charts = gemm_charts(PRODUCTS)
    assert [(chart.title, chart.labels) for chart in charts] == [(f"model {n}", ["1", "64"]) for n in ("o", "down")]
    assert charts[0].lines["library bf16"][0].median == charts[0].lines["bf16 exact"][1].median == 2000.0
    assert charts[0].lines["Q4_0"][0].high == 1000.0


@pytest.mark.parametrize("cells", [KERNELS, PRODUCTS], ids=["kernels", "products"])
def test_a_result_is_drawn_with_or_without_runs_around_it(cells, tmp_path):
    run = {"environment": {"device": "a card"}, "read_ceiling_gbps": 4000.0, "cells": cells}
    for result in (run, {"runs": [run]}):
        path = tmp_path / "drawn.png"
        draw_result(result, path)
        assert path.read_bytes().startswith(b"\x89PNG")
        path.unlink()


def test_a_saved_result_is_drawn_from_the_command_line(tmp_path):
    given, drawn = tmp_path / "result.json", tmp_path / "drawn.png"
    older = [{name: value for name, value in cell.items() if name != "spread_us"} for cell in KERNELS]
    given.write_text(json.dumps({"environment": {}, "read_ceiling_gbps": 4000.0, "cells": older}))
    subprocess.run([sys.executable, "-m", "octavo.bench.bandwidth_plot", given, drawn], check=True)
    assert drawn.read_bytes().startswith(b"\x89PNG")
