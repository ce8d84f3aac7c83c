"""`octavo bench decode --random-weights`: batches and requests over random weights of a config's shape."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.bench_options import draw_figures

if TYPE_CHECKING:
    from octavo.bench.engine_decode import EngineDecodeRun
    from octavo.config import EngineConfig


def decode_random(
    directory: Path,
    loads: str,
    requests: tuple[int, str] | None,
    *,
    new_tokens: int,
    rounds: int,
    config: EngineConfig,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure `loads` (none of them if it is empty), then `requests`: how many, of which lengths."""
    from octavo.bench.engine_decode import EngineDecodeRun, bench_engine_decode, cell_line
    from octavo.bench.engine_requests import RequestLoad, request_line
    from octavo.bench.kernel_loads import parse_loads

    run = EngineDecodeRun(
        directory,
        parse_loads(loads) if loads else (),
        new_tokens,
        rounds,
        config,
        None if requests is None else RequestLoad.of(*requests),
    )
    try:
        bench_engine_decode(
            run,
            lambda cell: print(f"octavo: {cell_line(cell)}", file=sys.stderr, flush=True),
            lambda cell: print(f"octavo: {request_line(cell)}", file=sys.stderr, flush=True),
        )
    finally:  # what ends it early, an interrupt too, loses nothing that was measured
        if run.cells or run.request_cell is not None:
            print(json.dumps(run.as_object()) if as_json else "\n".join(_lines(run)), flush=True)
    charts = {
        "tokens/s": {cell.load.name: cell.tokens_per_s for cell in run.cells},
        "ms a step": {cell.load.name: cell.step_ms for cell in run.cells},
    }
    if run.cells:
        draw_figures(f"{directory.name}, random weights, {rounds} rounds", charts, plot)


def _lines(run: EngineDecodeRun) -> Iterator[str]:
    from octavo.bench.engine_decode import cell_line
    from octavo.bench.engine_requests import request_line
    from octavo.bench.stamp import device_line, versions_line

    yield from run.outcome.lines()
    yield f"{run.directory.name}, random weights; {device_line(run.environment)}; {versions_line(run.environment)}"
    yield f"median of {run.rounds} (least to most)"
    if run.first_token_s is not None:
        yield f"first token, from process start   {run.first_token_s:.2f} s, of which weights {run.load_s:.2f} s"
    for cell in run.cells:
        share = ""
        if run.ceiling_gbps is not None:
            share = f"   {cell.step_bytes / cell.step_ms.median / run.ceiling_gbps / 1e6:.0%} of the read ceiling"
        yield cell_line(cell) + share
    if run.request_cell is not None:
        yield request_line(run.request_cell)
