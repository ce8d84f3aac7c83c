"""`octavo bench decode`: one sequence end to end, or batches over random weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench_exact
from octavo.cli import engine_options as flags
from octavo.cli.bench_options import PeerPython, Plot, check_plot_flag, draw_figures
from octavo.cli.bench_random import decode_random
from octavo.cli.options import option
from octavo.engine.profile import DEFAULT_STEPS, ProfileSettings
from octavo.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.bench.decode import DecodeRun


def decode(
    model: flags.Model = None,
    prompt_tokens: Annotated[
        int, option("--prompt-tokens", help="Length of the prompt that prefill is timed on.")
    ] = 512,
    new_tokens: Annotated[int, option("--new-tokens", help="Tokens that decode is timed on.")] = 128,
    repeats: Annotated[int, option("--repeats", help="Fresh processes per figure.")] = 3,
    storage: flags.Storage = "auto",
    dtype: flags.Dtype = "auto",
    weights: flags.Weights = "auto",
    threads: flags.Threads = None,
    peer_python: PeerPython = None,
    profile: flags.ProfileDirectory = None,
    profile_steps: flags.ProfileSteps = DEFAULT_STEPS,
    random_weights: Annotated[
        bool, option("--random-weights", help="Decode speed of batches over random weights, of the shape of --config.")
    ] = False,
    config: Annotated[
        Path | None, option("--config", help="Directory with the config.json that random weights are made for.")
    ] = None,
    loads: Annotated[
        str, option("--loads", help="Loads: sequences x tokens, comma-separated; `64 mixed` is one of them.")
    ] = "1x128,1x16K,1x32K,4x1K,8x1K,64x1K",
    requests: Annotated[
        int | None, option("--requests", help="With random weights: also answer so many requests, all sent at once.")
    ] = None,
    lengths: Annotated[
        str, option("--lengths", help="Least and most tokens of the requests' prompts and of their answers.")
    ] = "100-1024",
    cuda_graphs: flags.CudaGraphs = None,
    exact: flags.Exact = None,
    exact_cost: Annotated[
        bool, option("--exact-cost", help="With random weights: every load with and without --exact, by turns.")
    ] = False,
    device: flags.Device = "auto",
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """One sequence: first token from process start, decode and prefill speed, peak memory.

    A profile is taken in a run of its own, after those that are timed. With random weights: batches of the loads (an
    empty list for none), decoded in one process, and requests.
    """
    check_plot_flag(plot)
    for name, value, least in (
        ("prompt tokens", prompt_tokens, 1),
        ("new tokens", new_tokens, 2),
        ("repeats", repeats, 1),
    ):
        if value < least:
            raise InvalidRequest(f"{name} is {value}; it must be at least {least}")
    if random_weights or config is not None:
        if config is None or not random_weights or model is not None:
            raise InvalidRequest(
                "random weights are made for a config; give --random-weights --config DIR, and no model"
            )
        if peer_python is not None:
            raise InvalidRequest("nothing stands beside random weights; leave --peer-python out")
        given = flags.EngineFlags(
            dtype=dtype, device=device, threads=threads, cuda_graphs=cuda_graphs, exact=exact
        ).config(1)
        if exact_cost:
            if exact is not None or requests is not None:
                raise InvalidRequest(
                    "--exact-cost measures the loads with and without --exact; give no --exact, no --requests"
                )
            bench_exact.exact_cost(
                config, loads, new_tokens=new_tokens, rounds=repeats, config=given, plot=plot, as_json=as_json
            )
            return
        asked = None if requests is None else (requests, lengths)
        decode_random(
            config, loads, asked, new_tokens=new_tokens, rounds=repeats, config=given, plot=plot, as_json=as_json
        )
        return
    if exact_cost:
        raise InvalidRequest("--exact-cost needs --random-weights")
    if requests is not None:
        raise InvalidRequest("--requests needs --random-weights; `octavo bench serving` sends requests to a server")
    profiles = ProfileSettings.of(profile, profile_steps)
    from octavo.bench.decode import DecodeRun, bench_decode
    from octavo.bench.peers import find_peer
    from octavo.engine.hardware import choose_threads
    from octavo.store import TerminalProgress, resolve_model

    checked = flags.EngineFlags(storage=storage, dtype=dtype, weights=weights, threads=threads, exact=exact).config(1)
    num_threads = choose_threads(checked.threads)
    passed = ["--storage", storage, "--dtype", dtype, "--weights", weights, "--threads", str(num_threads)]
    passed += [] if exact is None else ["--exact" if exact else "--no-exact"]
    path = resolve_model(model, progress=TerminalProgress())
    run = DecodeRun(path.name, repeats, new_tokens, find_peer(path, peer_python))
    try:
        bench_decode(
            run,
            path,
            passed,
            threads=num_threads,
            prompt_tokens=prompt_tokens,
            profiles=profiles,
            on_run=lambda round_: print(f"run {round_ + 1} of {repeats}", file=sys.stderr),
        )
    finally:  # what ends it early, an interrupt too, loses nothing that was measured
        if run.rounds:
            _show(run, plot, as_json)


def _show(run: DecodeRun, plot: Path | None, as_json: bool) -> None:
    from octavo.bench.decode_report import report_lines

    print(json.dumps(run.as_object()) if as_json else "\n".join(report_lines(run)), flush=True)
    draw_figures(f"{run.model}: one sequence, {len(run.rounds)} runs", run.charts(), plot)
