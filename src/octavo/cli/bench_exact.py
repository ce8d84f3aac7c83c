"""`octavo bench decode --random-weights --exact-cost`: what `--exact` costs a decode step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.bench_options import draw_figures

if TYPE_CHECKING:
    from octavo.config import EngineConfig


def exact_cost(
    directory: Path, loads: str, *, new_tokens: int, rounds: int, config: EngineConfig, plot: Path | None, as_json: bool
) -> None:
    """Measure `loads` with and without by turns; `config` leaves `exact` open."""
    from octavo.bench.exact_cost import ExactCostRun, bench_exact_cost, cell_line, report_lines
    from octavo.bench.kernel_loads import parse_loads

    run = ExactCostRun(directory, parse_loads(loads), new_tokens, rounds, config)
    try:
        bench_exact_cost(run, lambda cell: print(f"octavo: {cell_line(cell)}", file=sys.stderr, flush=True))
    finally:  # what ends it early, an interrupt too, loses nothing that was measured
        if run.cells:
            print(json.dumps(run.as_object()) if as_json else "\n".join(report_lines(run)), flush=True)
            draw_figures(f"{directory.name}, random weights: what --exact costs", run.charts(), plot)
