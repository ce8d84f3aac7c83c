"""`octavo bench storage`: which storage a family's flag should name, by measurement."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import engine_options as flags
from octavo.cli.bench_options import Plot, Rounds, Timeout, check_plot_flag, counts, written
from octavo.cli.options import option
from octavo.cli.serve import DEFAULT_PARALLEL, Parallel

if TYPE_CHECKING:
    from octavo.bench.storage import Kind, StorageRun
    from octavo.engine.loaded_model import ModelPlan


@flags.with_engine_flags("storage", "context_limit_policy", "keep")
def storage(
    *,
    model: flags.Model = None,
    parallel: Parallel = DEFAULT_PARALLEL,
    prompt_tokens: Annotated[str, option("--prompt-tokens", help="Lengths of prompts, exact.")] = "512,4096",
    concurrency: Annotated[str, option("--concurrency", help="Numbers of clients; each with each length.")] = "1,4,8",
    rounds: Rounds = 5,
    max_tokens: Annotated[int, option("--max-tokens", help="Tokens of an answer.")] = 64,
    requests: Annotated[int, option("--requests", help="Requests of each client per cell and round.")] = 1,
    seed: flags.Seed = None,
    timeout: Timeout = 1800,
    engine: flags.EngineFlags,
    force: flags.Force = False,
    out: Annotated[
        Path | None, option("--out", help="New file for the raw data, JSON lines (default: named by model and time).")
    ] = None,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Dense or paged: both in turn, each on a fresh server, and paged again to see how much is chance; decides `auto`.

    The table is Markdown, to be kept beside the raw data.
    """
    check_plot_flag(plot)
    from octavo.bench.progress import watching
    from octavo.bench.served_arm import ServedLoad
    from octavo.bench.storage import StorageRun, bench_storage, check_rounds_asked, plan_both, storage_arms
    from octavo.engine.loaded_model import plan_model
    from octavo.store import TerminalProgress, resolve_model

    load = ServedLoad(
        prompt_tokens=counts(prompt_tokens, "prompt length", "numbers of tokens such as 512,4096"),
        concurrencies=counts(concurrency, "concurrency", "numbers of clients such as 1,4,8"),
        max_tokens=max_tokens,
        requests_per_client=requests,
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        timeout_s=timeout,
    )
    load.check()
    check_rounds_asked(rounds)
    config = engine.config(parallel, force=force)
    path = resolve_model(model, progress=TerminalProgress())

    def plan(kind: Kind) -> ModelPlan:
        return plan_model(path, replace(config, storage=kind))

    found = plan_both(plan, load)
    given = [f"--parallel={parallel}", *given_flags(engine), *(["--force"] if force else [])]
    family, device = found.config.model_type, found.device.type
    asked = {"--prompt-tokens": prompt_tokens, "--concurrency": concurrency, "--rounds": rounds}
    asked |= {"--max-tokens": max_tokens, "--requests": requests, "--seed": load.seed}
    words = [*given, *(f"{name}={value}" for name, value in asked.items())]
    run = StorageRun(
        model=path.name,
        family=family,
        device=device,
        settings=settings_of(found),
        command=shlex.join(["octavo", "bench", "storage", "-m", path.name, *words]),
        paired=storage_arms(path, given, load, rounds),
    )
    when = datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
    target = out if out is not None else Path(f"{when}-{path.stem}-storage.jsonl")
    with written(target, "--out", fresh=True) as raw:
        print(f"octavo: raw data go to {target}", file=sys.stderr)
        try:
            with watching() as watcher:
                bench_storage(run, raw, watcher)
        finally:  # what ends it early, an interrupt too, loses nothing that was measured
            if run.paired.cells:
                _show(run, plot, as_json)


def _show(run: StorageRun, plot: Path | None, as_json: bool) -> None:
    from octavo.bench.paired_plot import plot_verdicts
    from octavo.bench.storage_report import document_lines

    print(json.dumps(run.as_object()) if as_json else "\n".join(document_lines(run)), flush=True)
    if plot is not None and run.verdicts:
        title = f"{run.model} ({run.family}, {run.device}): storage"
        plot_verdicts(run.verdicts, title, ("paged", "dense"), "output tokens/s", plot)


def given_flags(engine: flags.EngineFlags) -> list[str]:
    """The engine's flags that are not as they are by default, as a command takes them."""
    words = []
    for each in fields(engine):
        value, name = getattr(engine, each.name), each.name.replace("_", "-")
        if value != each.default:
            words.append(f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name}={value}")
    return words


def settings_of(plan: ModelPlan) -> str:
    """What was chosen for the model; its storage is what is to be decided."""
    from octavo.models.route_names import route_names

    k, v = plan.codecs
    weights = " + ".join(sorted(route_names(plan.checkpoint, plan.routes)))
    where = plan.device.type + (f", {plan.threads} threads" if plan.device.type == "cpu" else "")
    kv = k.name if k is v else f"k={k.name},v={v.name}"
    dtype = str(plan.dtype).removeprefix("torch.")
    return f"{plan.checkpoint.path.name} ({plan.config.model_type}), {dtype} on {where}, {weights} weights, {kv} K/V"
