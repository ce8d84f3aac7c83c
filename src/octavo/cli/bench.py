"""`octavo bench …`: measurements, as tables or JSON."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from octavo.cli import engine_options as flags
from octavo.cli.options import option
from octavo.errors import InvalidRequest

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Measure: speed and memory, with their spread.")


@app.callback()
def _root() -> None:
    """Measure speed and memory."""


@app.command("decode")
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
    as_json: flags.AsJson = False,
) -> None:
    """One sequence: first token from process start, decode and prefill speed, peak memory."""
    for name, value, least in (
        ("prompt tokens", prompt_tokens, 1),
        ("new tokens", new_tokens, 2),
        ("repeats", repeats, 1),
    ):
        if value < least:
            raise InvalidRequest(f"{name} is {value}; it must be at least {least}")
    from octavo.bench.decode import bench_decode
    from octavo.engine.hardware import choose_threads
    from octavo.store import TerminalProgress, resolve_model

    config = flags.EngineFlags(storage=storage, dtype=dtype, weights=weights, threads=threads).config(1)
    num_threads = choose_threads(config.threads)
    passed = ["--storage", storage, "--dtype", dtype, "--weights", weights, "--threads", str(num_threads)]
    path = resolve_model(model, progress=TerminalProgress())
    result = bench_decode(
        path,
        passed,
        threads=num_threads,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repeats=repeats,
        on_run=lambda run: print(f"run {run + 1} of {repeats}", file=sys.stderr),
    )
    if as_json:
        print(json.dumps(result.as_object()))
        return
    print(f"{result.model}, {result.machine}; median of {repeats} (least to most)")
    print(f"first token, from process start   {result.first_token_s} s")
    print(f"decode, {result.new_tokens} tokens              {result.decode_tps} tokens/s")
    print(f"prefill, {result.prompt_tokens} tokens             {result.prefill_tps} tokens/s")
    print(f"peak memory                       {result.peak_mib} MiB")
    for name, peer in result.peers.items():
        print(f"{name}: decode {peer.decode_tps} tokens/s, prefill {peer.prefill_tps} tokens/s")
