"""`octavo bench storage`: which storage a family's flag should name, by measurement."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli import engine_options as flags
from octavo.cli.bench_options import (
    AnswerTokens,
    Concurrencies,
    Out,
    Plot,
    PromptLengths,
    Requests,
    Rounds,
    Timeout,
    check_plot_flag,
    raw_data,
    served_load,
)
from octavo.cli.serve import DEFAULT_PARALLEL, Parallel

if TYPE_CHECKING:
    from octavo.bench.storage import Kind, StorageRun
    from octavo.engine.loaded_model import ModelPlan


@flags.with_engine_flags("storage", "context_limit_policy", "keep")
def storage(
    *,
    model: flags.Model = None,
    parallel: Parallel = DEFAULT_PARALLEL,
    prompt_tokens: PromptLengths = "512,4096",
    concurrency: Concurrencies = "1,4,8",
    rounds: Rounds = 5,
    max_tokens: AnswerTokens = 64,
    requests: Requests = 1,
    seed: flags.Seed = None,
    timeout: Timeout = 1800,
    engine: flags.EngineFlags,
    force: flags.Force = False,
    out: Out = None,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Dense or paged: both in turn, each on a fresh server, and paged again to see how much is chance; decides `auto`.

    The table is Markdown, to be kept beside the raw data.
    """
    check_plot_flag(plot)
    from octavo.bench.progress import watching
    from octavo.bench.storage import StorageRun, bench_storage, check_rounds_asked, plan_both, storage_arms
    from octavo.engine.loaded_model import plan_model
    from octavo.store import TerminalProgress, resolve_model

    load = served_load(prompt_tokens, concurrency, max_tokens, requests, seed, timeout)
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
    with raw_data(out, path, "storage") as raw:
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
    where = plan.device.type + (
        f", {plan.threads} thread{'s'[: plan.threads > 1]}" if plan.device.type == "cpu" else ""
    )
    kv = k.name if k is v else f"k={k.name},v={v.name}"
    dtype = str(plan.dtype).removeprefix("torch.")
    return f"{plan.checkpoint.path.name} ({plan.config.model_type}), {dtype} on {where}, {weights} weights, {kv} K/V"
