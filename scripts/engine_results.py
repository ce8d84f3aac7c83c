"""Whole-engine results of one CUDA device as records and tables: `python -m scripts.engine_results RESULT.json...`.

Takes what `octavo bench decode --random-weights --json` and `octavo bench routes --json` printed
(scripts/engine_results.sh), puts the peer's figures beside it, and writes records (JSON) or, with --markdown, tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PEER = "vLLM 0.23 (given, not measured here)"
# Tokens/s on one H200, bfloat16, greedy, 256 new tokens; and the least of it that ours should be, where one is set.
GIVEN = {
    ("qwen3-1.7b", "1x128"): (493, 1.8),
    ("qwen3-1.7b", "1x16K"): (397, 1.8),
    ("qwen3-1.7b", "1x32K"): (338, 1.8),
    ("qwen3-1.7b", "4x1K"): (1838, None),
    ("qwen3-1.7b", "8x1K"): (3423, None),
    ("qwen3-1.7b", "64x1K"): (14853, 1.2),
    ("qwen3-1.7b", "256 requests of 100-1024"): (20658, 1.2),
    ("llama3-8b", "1x128"): (205, 1.25),
    ("llama3-8b", "1x16K"): (181, 1.25),
    ("llama3-8b", "1x32K"): (168, 1.25),
    ("llama3-8b", "4x1K"): (790, None),
    ("llama3-8b", "8x1K"): (1530, None),
    ("llama3-8b", "64x1K"): (8289, 1.2),
    ("llama3-8b", "256 requests of 100-1024"): (10255, 1.2),
}
FIRST_TOKEN_GOAL_S = 10.0
LEAST_RATIO = 0.97  # of fused to gathered decode in any cell; above 1 where a client has 4K and more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--commit", help="of the tree, where the machine had no checkout to ask")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    records = [
        record for path in given.results for record in records_of(json.loads(path.read_text("utf-8")), given.commit)
    ]
    if given.markdown:
        print("\n".join(tables(records)))
    else:
        print(json.dumps({"records": records}, indent=1))


def records_of(result: dict[str, Any], commit: str | None = None) -> Iterator[dict[str, Any]]:
    """A record for each cell, and one for the first token of a run of `bench decode`."""
    environment = result["environment"]
    common = {
        "device": environment.get("device"),
        "date": environment["date"],
        "commit": environment["commit"] or commit,
        "rounds": result["rounds"],
    }
    for cell in result["cells"]:
        if "through" in cell:
            yield route_record(cell) | common
        else:
            yield decode_record(cell, result["read_ceiling_gbps"]) | common
    if result.get("first_token_s") is not None:
        seconds = result["first_token_s"]
        yield {
            "shape": result["model"],
            "load": "first token from process start, kernels compiled before",
            "ours": {"seconds": seconds, "weights_s": result["load_s"]},
            "goal": FIRST_TOKEN_GOAL_S,
            "met": seconds < FIRST_TOKEN_GOAL_S,
        } | common


def decode_record(cell: dict[str, Any], ceiling_gbps: float | None) -> dict[str, Any]:
    peer, goal = GIVEN.get((cell["shape"], cell["load"]), (None, None))
    median = cell["tokens_per_s"]["median"]
    ratio = None if peer is None else median / peer
    limit = cell.get("read_limit_tokens_per_s")
    return {
        "shape": cell["shape"],
        "load": cell["load"],
        "ours": {"tokens_per_s": rounded(cell["tokens_per_s"])},
        "peers": {} if peer is None else {PEER: {"tokens_per_s": peer}},
        "ratio": None if ratio is None else round(ratio, 3),
        "goal": goal,
        "met": None if ratio is None or goal is None else ratio >= goal,
        "ceiling": {"read_gbps": ceiling_gbps, "tokens_per_s": limit},
        "share_of_ceiling": None if limit is None else round(median / limit, 3),
        "steps": cell["steps"],
    }


def route_record(cell: dict[str, Any]) -> dict[str, Any]:
    clients, _, tokens = cell["load"].partition("x")
    ratio = cell["fused_over_gather"]["median"]
    long = tokens.endswith("K") and int(tokens[:-1]) >= 4
    return {
        "shape": cell["shape"],
        "load": f"{clients} {'client' if clients == '1' else 'clients'} of {tokens}, through the {cell['through']}",
        "ours": {name: {"tokens_per_s": rounded(spread)} for name, spread in cell["tokens_per_s"].items()},
        "ratio": round(ratio, 3),
        "ratio_spread": rounded(cell["fused_over_gather"], 3),
        "goal": 1.0 if long else LEAST_RATIO,
        "met": ratio > 1.0 if long else ratio >= LEAST_RATIO,
    }


def rounded(spread: dict[str, float], digits: int = 1) -> dict[str, float]:
    return {name: round(value, digits) for name, value in spread.items()}


def tables(records: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: decode beside the peer by shape, then fused beside gather, then first tokens."""
    for shape in dict.fromkeys(record["shape"] for record in records if "peers" in record):
        yield from (
            f"## {shape}",
            "",
            "| load | ours | given for vLLM 0.23 | ours ÷ vLLM | goal | read limit | share |",
        )
        yield "|---|---|---|---|---|---|---|"
        for each in records:
            if each["shape"] == shape and "peers" in each:
                peer = each["peers"].get(PEER, {}).get("tokens_per_s", "")
                limit = each["ceiling"]["tokens_per_s"]
                cells = [each["load"], spread_text(each["ours"]["tokens_per_s"]), f"{peer:,}", ratio_text(each)]
                cells += [goal_text(each), *(("", "") if limit is None else (f"{limit:,.0f}", percent(each)))]
                yield "| " + " | ".join(cells) + " |"
        yield ""
    routes = [record for record in records if "ratio_spread" in record]
    if routes:
        yield from ("| load | fused | gather | fused ÷ gather | goal |", "|---|---|---|---|---|")
        for each in routes:
            arms = [spread_text(each["ours"][name]["tokens_per_s"]) for name in ("fused", "gather")]
            yield "| " + " | ".join([each["load"], *arms, spread_text(each["ratio_spread"], 2), goal_text(each)]) + " |"
        yield ""
    for each in records:
        if "seconds" in each["ours"]:
            seconds, weights = each["ours"]["seconds"], each["ours"]["weights_s"]
            what = f"{each['shape']}, {each['load']}"
            yield f"* {what}: {seconds:.1f} s, of which weights {weights:.1f} s; goal {goal_text(each)}"


def spread_text(spread: dict[str, float], digits: int = 1) -> str:
    median, low, high = (f"{spread[name]:,.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def ratio_text(record: dict[str, Any]) -> str:
    return "" if record["ratio"] is None else f"{record['ratio']:.2f}"


def goal_text(record: dict[str, Any]) -> str:
    if record["goal"] is None:
        return "none set"
    return f"{record['goal']:g}, {'met' if record['met'] else 'missed'}"


def percent(record: dict[str, Any]) -> str:
    return f"{record['share_of_ceiling']:.0%}"


if __name__ == "__main__":
    main()
