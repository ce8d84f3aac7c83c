"""Kernel results of one CUDA device as data and tables: `python -m scripts.kernel_results OUT`.

OUT is what scripts/kernel_results.sh filled. Prints the runs of `bench kernels` as one JSON object, which
`python -m octavo.bench.bandwidth_plot` draws, or with --markdown their tables and what became of the goals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]

COMMANDS = {
    "decode": "octavo bench kernels --exact --json",
    "codecs": "octavo bench kernels --kv-dtypes f16,q8_0,q4_0 --loads 1x16K,8x4K,8x32K,64x1K --json",
    "contiguous": "octavo bench kernels --shapes 24/4/256 --kv-dtypes f16,q4_0 --loads "
    "1x4K,2x4K,4x4K,8x4K,1x32K,2x32K,4x32K,8x32K,1x128K,2x128K,4x128K,8x128K --json",
}
LARGE_BYTES, LARGE_SHARE = 500e6, 0.97  # of the read ceiling, at so many bytes of K/V or more
MIDDLE_BYTES, MIDDLE_SHARE = 134_217_728, 0.80
DENSE = "dense sdpa"
# float16 over the codec's time, by head size.
CODEC_GOALS = {("D128", "q8_0"): 1.6, ("D128", "q4_0"): 2.2, ("D256", "q8_0"): 1.4, ("D256", "q4_0"): 1.8}
CODEC_LOAD = "8x32K"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", help="of the tree, where the machine had no checkout to ask")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    runs = {
        name: committed(json.loads((given.out / f"{name}.json").read_text("utf-8")), given.commit) for name in COMMANDS
    }
    if given.markdown:
        print("\n".join([*decode_tables(runs["decode"]), *codec_tables(runs), *goals(runs)]))
    else:
        print(json.dumps({"runs": [{"command": COMMANDS[name]} | run for name, run in runs.items()]}, indent=1))


def committed(result: dict[str, Any], commit: str | None) -> dict[str, Any]:
    """With the commit in each record."""
    found = result["environment"]["commit"] or commit
    cells = [cell | {"commit": found} for cell in result["cells"]]
    return result | {"environment": result["environment"] | {"commit": found}, "cells": cells}


def decode_tables(run: Mapping[str, Any]) -> Iterator[str]:
    """A table for each head shape: ours, the exact form, and the peers, median (least to most)."""
    for shape in dict.fromkeys(cell["shape"] for cell in run["cells"]):
        yield from (f"## {shape}", "")
        yield "| load | K/V MB | ours | exact | FlashInfer | dense | best peer ÷ ours | share of ceiling |"
        yield "|---|---|---|---|---|---|---|---|"
        for cell in run["cells"]:
            if cell["shape"] == shape:
                exact = f"{timed(cell, 'f16 exact')} {ours(cell, 'f16 exact') / ours(cell) - 1:+.0%}"
                texts = [cell["load"], f"{cell['kv_bytes'] / 1e6:.0f}", timed(cell, "f16"), exact]
                texts += [timed(cell, best_flashinfer(cell)), timed(cell, DENSE)]
                yield "| " + " | ".join([*texts, f"{lead(cell):.2f}", f"{share(cell, run):.0%}"]) + " |"
        yield ""


def codec_tables(runs: Mapping[str, Any]) -> Iterator[str]:
    """K/V by codec, then q4_0 beside contiguous float16."""
    yield from ("## K/V by dtype", "", f"`{COMMANDS['codecs']}`; {stamp(runs['codecs'])}.")
    yield from ("Both K and V; ÷ is float16 ÷ that dtype.", "")
    yield "| shape | load | f16 | q8_0 | q4_0 | f16 ÷ q8_0 | f16 ÷ q4_0 | dense f16 |"
    yield "|---|---|---|---|---|---|---|---|"
    for cell in runs["codecs"]["cells"]:
        ratios = [f"{ours(cell) / ours(cell, name):.2f}" for name in ("q8_0", "q4_0")]
        times = [timed(cell, name) for name in ("f16", "q8_0", "q4_0")]
        yield "| " + " | ".join([cell["shape"], cell["load"], *times, *ratios, timed(cell, DENSE)]) + " |"
    yield from ("", "## q4_0 at Hq24 Hkv4 D256 against contiguous float16", "")
    yield from (f"`{COMMANDS['contiguous']}`; {stamp(runs['contiguous'])}.", "")
    yield "| load | ours, q4_0 | ours, f16 | dense f16 | dense ÷ q4_0 |"
    yield "|---|---|---|---|---|"
    for cell in runs["contiguous"]["cells"]:
        ratio = f"{cell['peers_us'][DENSE] / ours(cell, 'q4_0'):.2f}"
        yield "| " + " | ".join([cell["load"], *(timed(cell, name) for name in ("q4_0", "f16", DENSE)), ratio]) + " |"
    yield ""


def stamp(run: Mapping[str, Any]) -> str:
    """Which tree it was, and how fast memory was read then."""
    commit = run["environment"]["commit"] or "unknown"
    return f"commit {commit[:7]}, read ceiling {run['read_ceiling_gbps']:,.0f} GB/s"


def goals(runs: Mapping[str, Any]) -> Iterator[str]:
    """What was asked for, and the cells that miss it."""
    yield from ("## Against the goals", "", *decode_goals(runs["decode"]))
    for cell in runs["codecs"]["cells"]:
        if cell["load"] == CODEC_LOAD:
            dim = cell["shape"].rpartition(" ")[2]
            found = ", ".join(codec_goal(cell, dim, name) for name in ("q8_0", "q4_0"))
            yield f"* {cell['shape']} at {CODEC_LOAD}: {found}."
    ratios = [cell["peers_us"][DENSE] / ours(cell, "q4_0") for cell in runs["contiguous"]["cells"]]
    above, ends = sum(ratio > 1 for ratio in ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"
    yield f"* q4_0 at D256 beside contiguous float16: above 1 in {above} of {len(ratios)} ({ends})."


def decode_goals(run: Mapping[str, Any]) -> Iterator[str]:
    """Peers first, then the share of the read ceiling."""
    cells = run["cells"]
    beside = [cell for cell in cells if best_flashinfer(cell) is not None]
    ahead = [cell for cell in beside if lead_of_flashinfer(cell) > 1]
    yield f"* Ahead of FlashInfer in {len(ahead)} of {len(beside)} cells{listed(beside, ahead, lead_of_flashinfer)}."
    even = [cell for cell in cells if DENSE in cell["peers_us"]]
    level = [cell for cell in even if lead_of_dense(cell) >= 1]
    missed_dense = listed(even, level, lead_of_dense)
    yield f"* Level with contiguous SDPA or ahead in {len(level)} of {len(even)} cells{missed_dense}."
    large = [cell for cell in cells if cell["kv_bytes"] >= LARGE_BYTES]
    middle = [cell for cell in cells if cell["kv_bytes"] == MIDDLE_BYTES]
    for which, some, least in (("500 MB and more", large, LARGE_SHARE), ("134 MB", middle, MIDDLE_SHARE)):
        met = [cell for cell in some if share(cell, run) >= least]
        missed = [f"{cell['shape']} {cell['load']} {share(cell, run):.1%}" for cell in some if cell not in met]
        others = "" if not missed else "; not: " + ", ".join(missed)
        yield f"* At least {least:.0%} of the read ceiling in {len(met)} of {len(some)} cells of {which}{others}."


def codec_goal(cell: Cell, dim: str, codec: str) -> str:
    ratio, goal = ours(cell) / ours(cell, codec), CODEC_GOALS.get((dim, codec))
    asked = "no goal" if goal is None else f"{goal} asked, {'reached' if ratio >= goal else 'missed'}"
    return f"{codec} {ratio:.2f} ({asked})"


def listed(some: Sequence[Cell], met: Sequence[Cell], ratio: Callable[[Cell], float]) -> str:
    """Those that miss it."""
    missed = [f"{cell['shape']} {cell['load']} {ratio(cell):.3f}" for cell in some if cell not in met]
    return "" if not missed else "; peer ÷ ours in the others: " + ", ".join(missed)


def ours(cell: Cell, name: str = "f16") -> float:
    return float(cell["ours_us"][name])


def best_flashinfer(cell: Cell) -> str | None:
    """Name of the faster of its forms; None where it was not measured."""
    found = {us: name for name, us in cell["peers_us"].items() if name.startswith("flashinfer")}
    return found[min(found)] if found else None


def lead(cell: Cell) -> float:
    """The best peer's time over ours."""
    return float(min(cell["peers_us"].values()) / ours(cell))


def lead_of_flashinfer(cell: Cell) -> float:
    name = best_flashinfer(cell)
    assert name is not None
    return float(cell["peers_us"][name] / ours(cell))


def lead_of_dense(cell: Cell) -> float:
    return float(cell["peers_us"][DENSE] / ours(cell))


def share(cell: Cell, run: Mapping[str, Any]) -> float:
    """Of the read ceiling."""
    return float(cell["kv_bytes"] / ours(cell) / 1e3 / run["read_ceiling_gbps"])


def timed(cell: Cell, name: str | None) -> str:
    """Median (least to most, where a record has them) microseconds; empty where that was not measured."""
    times = cell["ours_us"] | cell["peers_us"]
    if name is None or name not in times:
        return ""
    if "spread_us" not in cell:
        return f"{times[name]:.1f}"
    low, high = cell["spread_us"][name]
    return f"{times[name]:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
