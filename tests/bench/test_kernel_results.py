"""Kernel results as tables: which columns stand where, and which goals are met."""

from __future__ import annotations

import json

import pytest

from scripts.kernel_results import COMMANDS, main


def cell(shape, load, kv_bytes, ours, peers):
    times = ours | peers
    return {
        "shape": shape,
        "load": load,
        "kv_bytes": kv_bytes,
        "ours_us": ours,
        "peers_us": peers,
        "spread_us": {name: [us - 0.5, us + 0.5] for name, us in times.items()},
        "commit": None,
    }


def result(*cells):
    environment = {"device": "a card", "date": "2026-11-30", "commit": None}
    return {"environment": environment, "read_ceiling_gbps": 4000.0, "cells": list(cells)}


@pytest.fixture
def out(tmp_path):
    flashinfer = {"flashinfer tensor cores": 120.0, "flashinfer cuda cores": 110.0}
    results = {
        "decode": result(
            cell(
                "Hq16 Hkv8 D128",
                "1x32K",
                134_217_728,
                {"f16": 40.0, "f16 exact": 50.0},
                flashinfer | {"dense sdpa": 39.0},
            ),
            cell("Hq16 Hkv8 D128", "64 mixed", 600_000_000, {"f16": 200.0, "f16 exact": 210.0}, flashinfer),
            cell("Hq32 Hkv8 D64", "8x32K", 536_870_912, {"f16": 135.0, "f16 exact": 150.0}, {"dense sdpa": 140.0}),
        ),
        "codecs": result(
            cell("Hq16 Hkv8 D128", "8x32K", 1, {"f16": 240.0, "q8_0": 140.0, "q4_0": 120.0}, {"dense sdpa": 241.0})
        ),
        "contiguous": result(
            cell("Hq24 Hkv4 D256", "1x4K", 1, {"f16": 10.0, "q4_0": 12.0}, {"dense sdpa": 15.0}),
            cell("Hq24 Hkv4 D256", "2x4K", 1, {"f16": 10.0, "q4_0": 12.0}, {"dense sdpa": 9.0}),
        ),
    }
    for name, each in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(each))
    return tmp_path


def printed(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["kernel_results", *map(str, arguments)])
    main()
    return capsys.readouterr().out


def test_runs_stand_in_one_file_with_their_commands_and_the_commit_in_each_record(out, monkeypatch, capsys):
    runs = json.loads(printed(monkeypatch, capsys, out, "--commit", "abc"))["runs"]
    assert [run["command"] for run in runs] == list(COMMANDS.values())
    assert {each["commit"] for run in runs for each in [run["environment"], *run["cells"]]} == {"abc"}


def test_a_line_has_ours_the_exact_form_and_the_better_peer_with_their_spreads(out, monkeypatch, capsys):
    lines = printed(monkeypatch, capsys, out, "--markdown").splitlines()
    assert (
        "| 1x32K | 134 | 40.0 (39.5 to 40.5) | 50.0 (49.5 to 50.5) +25% | 110.0 (109.5 to 110.5) | "
        "39.0 (38.5 to 39.5) | 0.97 | 84% |"
    ) in lines
    mixed = next(line for line in lines if line.startswith("| 64 mixed"))
    assert mixed.endswith("| 110.0 (109.5 to 110.5) |  | 0.55 | 75% |")


def test_a_table_says_of_which_commit_it_is_and_a_record_without_spreads_has_its_median(out, monkeypatch, capsys):
    path = out / "codecs.json"
    found = json.loads(path.read_text())
    del found["cells"][0]["spread_us"]
    found["environment"]["commit"] = "fedcba9876"
    path.write_text(json.dumps(found))
    lines = printed(monkeypatch, capsys, out, "--markdown", "--commit", "abcdef0123").splitlines()
    assert f"`{COMMANDS['codecs']}`; commit fedcba9, read ceiling 4,000 GB/s." in lines
    assert f"`{COMMANDS['contiguous']}`; commit abcdef0, read ceiling 4,000 GB/s." in lines
    assert "| Hq16 Hkv8 D128 | 8x32K | 240.0 | 140.0 | 120.0 | 1.71 | 2.00 | 241.0 |" in lines


def test_goals_name_the_cells_that_miss_them(out, monkeypatch, capsys):
    text = printed(monkeypatch, capsys, out, "--markdown")
    assert "* Ahead of FlashInfer in 1 of 2 cells; peer ÷ ours in the others: Hq16 Hkv8 D128 64 mixed 0.550." in text
    assert (
        "* Level with contiguous SDPA or ahead in 1 of 2 cells; peer ÷ ours in the others: Hq16 Hkv8 D128 1x32K 0.975."
        in text
    )
    assert (
        "* At least 97% of the read ceiling in 1 of 2 cells of 500 MB and more; not: Hq16 Hkv8 D128 64 mixed 75.0%."
        in text
    )
    assert "* At least 80% of the read ceiling in 1 of 1 cells of 134 MB." in text
    assert "* Hq16 Hkv8 D128 at 8x32K: q8_0 1.71 (1.6 asked, reached), q4_0 2.00 (2.2 asked, missed)." in text
    assert "* q4_0 at D256 beside contiguous float16: above 1 in 1 of 2 (0.75 to 1.25)." in text
