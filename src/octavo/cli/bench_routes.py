"""`octavo bench routes`: decode by the fused kernels beside decode by gathering."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from octavo.cli import engine_options as flags
from octavo.cli.bench_options import Plot, Rounds, check_plot_flag, draw_figures
from octavo.cli.options import option
from octavo.errors import InvalidRequest


def routes(
    config: Annotated[
        Path, option("--config", help="Directory with the config.json that random weights are made for.")
    ],
    loads: Annotated[
        str, option("--loads", help="Loads: clients x tokens of context, comma-separated.")
    ] = "4x1K,4x4K,4x16K,1x16K,1x32K",
    through: Annotated[str, option("--through", help="engine, or server: clients of our server over HTTP.")] = "server",
    new_tokens: Annotated[int, option("--new-tokens", help="Tokens of each answer.")] = 128,
    rounds: Rounds = 3,
    dtype: flags.Dtype = "auto",
    kv_dtype: flags.KvDtype = "auto",
    device: flags.Device = "auto",
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Fused kernels beside gathering, which differ by the kill switch alone: aggregate decode over random weights."""
    check_plot_flag(plot)
    for name, value, least in (("new tokens", new_tokens, 2), ("rounds", rounds, 1)):
        if value < least:
            raise InvalidRequest(f"{name} is {value}; it must be at least {least}")
    given = flags.EngineFlags(dtype=dtype, kv_dtype=kv_dtype, device=device).config(1)
    from octavo.bench.engine_decode import load_random
    from octavo.bench.kernel_loads import parse_loads
    from octavo.bench.routes import (
        RouteCell,
        RouteRun,
        bench_in_engine,
        bench_through_servers,
        cell_line,
        random_server,
        report_lines,
        through_of,
    )

    run = RouteRun(config.name, through_of(through), parse_loads(loads), new_tokens, rounds, given)

    def progress(cell: RouteCell) -> None:
        print(f"octavo: {cell_line(cell)}", file=sys.stderr, flush=True)

    try:
        if run.through == "engine":
            bench_in_engine(run, load_random(config, given), progress)
        else:
            bench_through_servers(run, random_server(config), progress)
    finally:  # what ends it early, an interrupt too, loses nothing that was measured
        if run.cells:
            print(json.dumps(run.as_object()) if as_json else "\n".join(report_lines(run)), flush=True)
    charts = {f"tokens/s, {name}": {cell.load.name: cell.spread(name) for cell in run.cells} for name in run.arms}
    draw_figures(f"{run.model}, random weights, through the {run.through}", charts, plot)
