"""`octavo bench …`: measurements, as tables or JSON."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import bench_regress
from octavo.cli import engine_options as flags
from octavo.cli.bench_decode import decode
from octavo.cli.bench_options import Plot, check_plot_flag, counts, draw_figures, written
from octavo.cli.bench_prefill import prefill
from octavo.cli.bench_routes import routes
from octavo.cli.bench_storage import storage
from octavo.cli.options import list_option, option, texts
from octavo.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.bench.load_endpoint import Api
    from octavo.bench.serving import ServingRun

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Measure: speed and memory, with their spread.")


@app.callback()
def _root() -> None:
    """Measure speed and memory."""


app.command("decode")(decode)


@app.command("grammar")
def grammar(
    model: flags.Model = None,
    batch: Annotated[int, option("--batch", help="Requests that decode together.")] = 16,
    new_tokens: Annotated[int, option("--new-tokens", help="Tokens of each that are timed.")] = 64,
    rounds: Annotated[int, option("--rounds", help="Times that both are measured, in turn.")] = 5,
    storage: flags.Storage = "auto",
    dtype: flags.Dtype = "auto",
    weights: flags.Weights = "auto",
    threads: flags.Threads = None,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Structured output: decode of a batch with and without a JSON schema."""
    check_plot_flag(plot)
    from octavo.bench.grammar import GrammarRun, bench_grammar, report_lines
    from octavo.engine.core import EngineCore
    from octavo.engine.loaded_model import load_model, plan_model
    from octavo.store import TerminalProgress, resolve_model

    config = flags.EngineFlags(storage=storage, dtype=dtype, weights=weights, threads=threads).config(max(batch, 1))
    path = resolve_model(model, progress=TerminalProgress())
    run = GrammarRun(path.name, batch, new_tokens, rounds)
    run.check()
    core = EngineCore(load_model(plan_model(path, config), config), config)
    try:
        bench_grammar(
            run,
            core,
            on_round=lambda number: print(f"octavo: round {number + 1} of {rounds}", file=sys.stderr, flush=True),
        )
    finally:  # what ends it early, an interrupt too, loses nothing that was measured
        if run.rounds:
            print(json.dumps(run.as_object()) if as_json else "\n".join(report_lines(run)), flush=True)
            draw_figures(f"{run.model}: batch of {batch}, {len(run.rounds)} rounds", run.charts(), plot)


@app.command("serving")
def serving(
    url: Annotated[str, option("--url", help="The endpoint, as http://localhost:8000, with or without /v1.")],
    concurrency: Annotated[str, option("--concurrency", help="Numbers of clients, a cell each.")] = "1,4,8",
    prompt_tokens: Annotated[int, option("--prompt-tokens", help="Length of a prompt, exact.")] = 512,
    max_tokens: Annotated[int, option("--max-tokens", help="Tokens of an answer.")] = 128,
    rounds: Annotated[int, option("--rounds", help="Times that every cell is measured.")] = 5,
    requests: Annotated[int, option("--requests", help="Requests of each client per cell and round.")] = 2,
    mix: Annotated[str, option("--mix", help="plain, shared-prefix, ragged or cancel.")] = "plain",
    shared_percent: Annotated[
        int, option("--shared-percent", help="Part of each prompt that all have in common, under shared-prefix.")
    ] = 50,
    cancel_percent: Annotated[
        int, option("--cancel-percent", help="Requests whose client hangs up midway, under cancel.")
    ] = 25,
    model: Annotated[
        str | None, option("--model", help="The model's name at the endpoint (default: the first that it lists).")
    ] = None,
    api: Annotated[str, option("--api", help="auto, completions or chat.")] = "auto",
    api_key: Annotated[
        list[str] | None, list_option("--api-key", help="Key for the endpoint (of several, the first).")
    ] = None,
    tokenizer: Annotated[
        str | None, option("--tokenizer", help="Model file or directory whose tokenizer counts the prompts.")
    ] = None,
    slo_ttft: Annotated[float, option("--slo-ttft", help="Goodput: most ms to the first token.")] = 1000,
    slo_itl: Annotated[float, option("--slo-itl", help="Goodput: most ms per output token of a request.")] = 100,
    seed: flags.Seed = None,
    timeout: Annotated[float, option("--timeout", help="Seconds that one request may take.")] = 600,
    raw: Annotated[Path | None, option("--raw-data", help="File that gets every request as a line of JSON.")] = None,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Load on any OpenAI-compatible endpoint: tokens/s, time to first token, inter-token latency, goodput."""
    from octavo.bench.client_loop import run_clients
    from octavo.bench.load_mix import Mix
    from octavo.bench.progress import watching
    from octavo.bench.serving import ServingProtocol, ServingRun, bench_serving
    from octavo.bench.serving_figures import Limits

    check_plot_flag(plot)
    protocol = ServingProtocol(
        url=url,
        concurrencies=counts(concurrency, "concurrency", "numbers of clients such as 1,4,8"),
        mix=Mix.of(mix, prompt_tokens, max_tokens, shared_percent, cancel_percent),
        rounds=rounds,
        requests_per_client=requests,
        limits=Limits(slo_ttft / 1e3, slo_itl / 1e3),
        # Another run against the same server must not find its prompts in the prefix cache.
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        timeout_s=timeout,
        model=model,
        api=_api(api),
    )
    protocol.check()
    key = next(iter(texts(api_key, "--api-key")), None)
    counter = None
    if tokenizer is not None:
        from octavo.models.loaders import open_checkpoint
        from octavo.store import TerminalProgress, resolve_model

        counter = open_checkpoint(resolve_model(tokenizer, progress=TerminalProgress())).tokenizer()
    run = ServingRun(protocol)
    with written(raw, "--raw-data") as lines:
        try:
            with watching() as watcher:
                run_clients(bench_serving(run, api_key=key, tokenizer=counter, raw=lines, watcher=watcher))
        finally:  # what ends it early, an interrupt too, loses nothing that was measured
            if run.rounds:
                _show_serving(run, plot, as_json)


app.command("prefill")(prefill)
app.command("storage")(storage)
app.command("routes")(routes)
app.add_typer(bench_regress.app, name="regress")


@app.command("kernels")
def kernels(
    shapes: Annotated[
        str, option("--shapes", help="Head shapes: query heads/KV heads/head size, comma-separated.")
    ] = "16/8/128,24/4/256,32/8/64,32/8/128",
    loads: Annotated[
        str, option("--loads", help="Loads: sequences x tokens, comma-separated; `64 mixed` is one of them.")
    ] = "1x1K,1x16K,1x32K,1x128K,4x1K,4x4K,4x16K,8x4K,8x32K,64x1K,64x4K,128K+7x8K,4K+7x256,64 mixed",
    kv_dtypes: Annotated[
        str, option("--kv-dtypes", help="K/V dtypes of ours: f16, q8_0, q4_0, comma-separated.")
    ] = "f16",
    exact: Annotated[bool, option("--exact", help="Also time the form whose rows do not depend on others.")] = False,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Paged decode attention on a CUDA device: our kernels beside FlashInfer's and dense SDPA, in one run."""
    check_plot_flag(plot)
    from octavo.bench.kernel_loads import parse_loads, parse_shapes

    parsed = parse_shapes(shapes), parse_loads(loads)
    dtypes = kv_dtypes.split(",")
    for name in dtypes:
        if name not in ("f16", "q8_0", "q4_0"):
            raise InvalidRequest(f"the K/V dtype is {name!r}; choose among f16, q8_0, q4_0")
    import torch

    if not torch.cuda.is_available():
        raise InvalidRequest("kernels are measured on a CUDA device, and torch sees none; run this where there is one")
    from octavo.bench.bandwidth_plot import draw_result
    from octavo.bench.kernel_report import cell_line, report_lines
    from octavo.bench.kernels import KernelRun, bench_kernels

    run = KernelRun(*parsed, dtypes, exact)
    try:
        bench_kernels(run, lambda cell: print(f"octavo: {cell_line(cell)}", file=sys.stderr, flush=True))
    finally:  # what ends it early, an interrupt too, loses nothing that was measured
        if run.cells:
            print(json.dumps(run.as_object()) if as_json else "\n".join(report_lines(run)), flush=True)
            if plot is not None:
                draw_result(run.as_object(), plot)


@app.command("gemm")
def gemm(
    only: Annotated[
        str, option("--only", help="Measure only weights whose name holds this, such as Qwen3 or down.")
    ] = "",
    rows: Annotated[str, option("--rows", help="Rows of the input, 1 to 64, comma-separated.")] = "1,2,4,8,16,32,64",
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Products of few rows on a CUDA device: our kernels, of bfloat16 and codes, beside the library's, in one run."""
    check_plot_flag(plot)
    counts = [int(each) if each.isdecimal() else 0 for each in rows.split(",")]
    if not all(1 <= count <= 64 for count in counts):
        raise InvalidRequest(f"the rows are {rows!r}; give numbers from 1 to 64, comma-separated")
    import torch

    if not torch.cuda.is_available():
        raise InvalidRequest("products are measured on a CUDA device, and torch sees none; run this where there is one")
    from octavo.bench.bandwidth_plot import draw_result
    from octavo.bench.gemm import CODE_FORMS, SHAPES, GemmRun, bench_gemm
    from octavo.bench.gemm_report import cell_line, report_lines

    run = GemmRun([shape for shape in SHAPES if only in shape.name], counts, CODE_FORMS)
    try:
        bench_gemm(run, lambda cell: print(f"octavo: {cell_line(cell)}", file=sys.stderr, flush=True))
    finally:  # what ends it early, an interrupt too, loses nothing that was measured
        if run.cells:
            print(json.dumps(run.as_object()) if as_json else "\n".join(report_lines(run)), flush=True)
            if plot is not None:
                draw_result(run.as_object(), plot)


@app.command("overhead")
def overhead(
    clients: Annotated[int, option("--clients", help="Streams at once, compared with the engine alone.")] = 32,
    many_clients: Annotated[int, option("--many-clients", help="Streams at once that load the web process.")] = 64,
    step_ms: Annotated[float, option("--step-ms", help="Milliseconds that a step of the mock model takes.")] = 5,
    prompt_tokens: Annotated[int, option("--prompt-tokens", help="Length of a prompt.")] = 64,
    max_tokens: Annotated[int, option("--max-tokens", help="Tokens of an answer.")] = 512,
    rounds: Annotated[int, option("--rounds", help="Times that everything is measured.")] = 5,
    viewer: Annotated[bool, option("--viewer", help="Measure also what one viewer of the live page costs.")] = False,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """What our server costs above our engine, with a mock model: throughput, CPU per token, first token."""
    check_plot_flag(plot)
    from octavo.bench.overhead import OverheadProtocol, OverheadRun, bench_overhead
    from octavo.bench.overhead_report import overhead_lines

    protocol = OverheadProtocol(clients, many_clients, step_ms, prompt_tokens, max_tokens, rounds, viewer)
    protocol.check()
    run = OverheadRun(protocol)
    try:
        asyncio.run(
            bench_overhead(run, lambda round_: print(f"octavo: round {round_ + 1} of {rounds}", file=sys.stderr))
        )
    finally:
        if run.rounds:
            print(json.dumps(run.as_object()) if as_json else "\n".join(overhead_lines(run)), flush=True)
            title = f"mock model of {step_ms:g} ms a step, {clients} streams, {len(run.rounds)} rounds"
            draw_figures(title, run.charts(), plot)


def _show_serving(run: ServingRun, plot: Path | None, as_json: bool) -> None:
    from octavo.bench.serving_plot import plot_serving
    from octavo.bench.serving_report import report_lines

    if as_json:
        print(json.dumps(run.as_object()), flush=True)
    else:
        print("\n".join(report_lines(run)), flush=True)
    if plot is not None:
        plot_serving(run, plot)


def _api(name: str) -> Api | None:
    match name:
        case "auto":
            return None
        case "completions":
            return "completions"
        case "chat":
            return "chat"
    raise InvalidRequest(f"the api is {name!r}; it is auto, completions or chat")
