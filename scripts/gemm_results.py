"""Results of `octavo bench gemm --json` as Markdown tables: `python -m scripts.gemm_results RESULT.json`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FORMS = {"bf16": "bf16", "bf16 exact": "exact", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q8_0": "Q8_0"}
AFFINE = "affine 4-bit g64"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    given = parser.parse_args()
    print("\n".join(tables(json.loads(given.result.read_text("utf-8")))))


def tables(result: Mapping[str, Any]) -> Iterator[str]:
    """One for each weight, then how often ours is ahead. A floor: the bfloat16 weight read at the measured ceiling."""
    cells = result["cells"]
    for shape in dict.fromkeys(cell["shape"] for cell in cells):
        mine = [cell for cell in cells if cell["shape"] == shape]
        floor = mine[0]["weight_bytes"]["bf16"] / result["read_ceiling_gbps"] / 1e3
        yield from (f"## {shape}: {mine[0]['n']:,} x {mine[0]['k']:,}, floor {floor:.1f}", "")
        yield "| rows | torch | " + " | ".join([*FORMS.values(), "affine", "torch ÷ bf16"]) + " |"
        yield "|" + "---|" * (len(FORMS) + 4)
        for cell in mine:
            times = [spread_text(cell["ours_us"].get(name)) for name in (*FORMS, AFFINE)]
            texts = [str(cell["rows"]), spread_text(cell["library_us"]), *times, ratio_text(cell)]
            yield "| " + " | ".join(texts) + " |"
        yield ""
    served = [cell for cell in cells if "bf16" in cell["ours_us"]]
    ratios = [ratio_of(cell) for cell in served]
    slower = [f"{cell['shape']} {cell['rows']} {ratio_of(cell):.2f}" for cell in served if ratio_of(cell) < 1]
    others = f": {', '.join(slower)}" if slower else ""
    yield f"Ours serves bfloat16 in {len(served)} of {len(cells)} cells, at {min(ratios):.2f} to {max(ratios):.2f}"
    yield f"times torch's speed; slower in {len(slower)}{others}."


def ratio_of(cell: Mapping[str, Any]) -> float:
    return float(cell["library_us"]["median"] / cell["ours_us"]["bf16"]["median"])


def ratio_text(cell: Mapping[str, Any]) -> str:
    """Empty where torch's product serves."""
    return f"{ratio_of(cell):.2f}" if "bf16" in cell["ours_us"] else ""


def spread_text(spread: Mapping[str, float] | None) -> str:
    """Median (least to most) microseconds; empty where there is none."""
    return "" if spread is None else f"{spread['median']:.1f} ({spread['low']:.1f} to {spread['high']:.1f})"


if __name__ == "__main__":
    main()
