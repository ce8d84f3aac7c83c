"""Whole-engine results as records: the peer's figures beside ours, and which goals are met."""

from __future__ import annotations

import json

import pytest

from scripts.engine_results import PEER, main, records_of, tables


def spread(median):
    return {"median": median, "low": median - 1, "high": median + 1}


def decode_result(**speeds):
    names = {"one": "1x128", "four": "4x1K", "requests": "256 requests of 100-1024"}
    cells = [
        {
            "shape": "qwen3-1.7b",
            "load": names[name],
            "tokens_per_s": spread(speed),
            "steps": {"replayed": 255},
            "read_limit_tokens_per_s": 1250.0 if name == "one" else None,
        }
        for name, speed in speeds.items()
    ]
    return {
        "model": "qwen3-1.7b",
        "environment": {"device": "a card", "date": "2026-11-30", "commit": None},
        "rounds": 3,
        "read_ceiling_gbps": 4400.0,
        "first_token_s": 9.5,
        "load_s": 2.0,
        "cells": cells,
    }


def routes_result(**ratios):
    cells = [
        {
            "shape": "qwen3-1.7b",
            "load": load,
            "through": "server",
            "tokens_per_s": {"fused": spread(100 * ratio), "gather": spread(100)},
            "fused_over_gather": spread(ratio),
        }
        for load, ratio in ratios.items()
    ]
    environment = {"device": "a card", "date": "2026-11-30", "commit": "abc"}
    return {"model": "qwen3-1.7b", "environment": environment, "rounds": 3, "cells": cells}


def test_a_cell_stands_beside_the_peers_figure_and_its_goal():
    one, four, requests, first = records_of(decode_result(one=1000.0, four=2000.0, requests=20_000.0), "abc")
    assert one["peers"] == {PEER: {"tokens_per_s": 493}} and "not measured here" in PEER
    assert (one["ratio"], one["goal"], one["met"]) == (2.028, 1.8, True)
    assert (one["share_of_ceiling"], one["commit"]) == (0.8, "abc")
    assert (four["goal"], four["met"]) == (None, None)
    assert (requests["met"], requests["share_of_ceiling"]) == (False, None)
    assert (first["ours"]["seconds"], first["met"]) == (9.5, True)


@pytest.mark.parametrize(
    ("load", "ratio", "met"), [("4x1K", 0.98, True), ("4x1K", 0.96, False), ("1x16K", 0.99, False)]
)
def test_fused_decode_may_lose_a_little_where_contexts_are_short_and_nothing_elsewhere(load, ratio, met):
    (record,) = records_of(routes_result(**{load: ratio}))
    assert record["met"] is met


def test_results_become_records_or_tables(tmp_path, capsys, monkeypatch):
    paths = [tmp_path / "decode.json", tmp_path / "routes.json"]
    for path, result in zip(paths, (decode_result(one=1000.0), routes_result(**{"4x4K": 1.5})), strict=True):
        path.write_text(json.dumps(result))
    monkeypatch.setattr("sys.argv", ["engine_results", *map(str, paths), "--commit", "abc"])
    main()
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["load"] for record in records][::2] == ["1x128", "4 clients of 4K, through the server"]
    text = "\n".join(tables(records))
    assert "| 1x128 | 1,000.0 (999.0 to 1,001.0) | 493 | 2.03 | 1.8, met | 1,250 | 80% |" in text
    assert "| 1.50 (0.50 to 2.50) | 1, met |" in text
    assert "9.5 s, of which weights 2.0 s; goal 10, met" in text
