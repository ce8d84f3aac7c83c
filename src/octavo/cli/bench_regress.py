"""`octavo bench regress save` and `run`: has the code become slower since a commit?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    draw_figures,
    raw_data,
    served_load,
)
from octavo.cli.bench_storage import given_flags
from octavo.cli.options import option
from octavo.cli.serve import DEFAULT_PARALLEL, Parallel

if TYPE_CHECKING:
    from octavo.bench.regress import RegressRun

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="Save a protocol, and measure its commit against the code of now."
)

SavedFile = Annotated[Path, typer.Argument(metavar="FILE", help="The protocol, as JSON.")]


@app.callback()
def _root() -> None:
    """Save a protocol, and measure its commit against the code of now."""


@app.command("save")
@flags.with_engine_flags("context_limit_policy", "keep")
def save(
    *,
    file: SavedFile,
    model: flags.Model = None,
    parallel: Parallel = DEFAULT_PARALLEL,
    prompt_tokens: PromptLengths = "512",
    concurrency: Concurrencies = "1,8",
    rounds: Rounds = 5,
    max_tokens: AnswerTokens = 64,
    requests: Requests = 2,
    seed: flags.Seed = None,
    timeout: Timeout = 600,
    engine: flags.EngineFlags,
    force: flags.Force = False,
    out: Out = None,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Measure the code of now, and save what was measured, with what it gave, to a new file."""
    check_plot_flag(plot)
    from octavo.bench.old_source import checkout, clean_commit
    from octavo.bench.progress import watching
    from octavo.bench.regress import FIGURES, regress_arms, save_protocol
    from octavo.bench.saved_protocol import SavedProtocol
    from octavo.bench.storage import check_rounds_asked
    from octavo.store import TerminalProgress, resolve_model

    load = served_load(prompt_tokens, concurrency, max_tokens, requests, seed, timeout)
    check_rounds_asked(rounds)
    engine.config(parallel, force=force)
    SavedProtocol.check_target(file)
    commit = clean_commit(checkout())
    path = resolve_model(model, progress=TerminalProgress())
    given = (f"--parallel={parallel}", *given_flags(engine), *(["--force"] if force else []))
    with raw_data(out, path, "regress-save") as raw, watching() as watcher:
        saved = save_protocol(file, regress_arms(path, given, load, rounds), path, given, commit, raw, watcher)
    charts = {name: {cell.name: saved.figures[f"{cell.name}: {name}"] for cell in load.cells} for name in FIGURES}
    draw_figures(f"{path.name} at {commit[:12]}, {rounds} rounds", charts, plot)
    if as_json:
        print(json.dumps(saved.as_object()))
        return
    print(f"saved {file}: commit {commit[:12]}, {path.name}")
    for name, spread in saved.figures.items():
        print(f"{name}   {spread}")


@app.command("run")
def run(
    file: SavedFile,
    model: flags.Model = None,
    rounds: Annotated[
        int | None, option("--rounds", help="Times that everything is measured (default: as saved).")
    ] = None,
    out: Out = None,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Measure the saved commit's code and the code of now in turn; exit status 1 if now is slower beyond chance."""
    check_plot_flag(plot)
    from octavo.bench.old_source import checkout, old_source
    from octavo.bench.progress import watching
    from octavo.bench.regress import RegressRun, bench_regress, check_model, regress_arms
    from octavo.bench.saved_protocol import SavedProtocol
    from octavo.bench.storage import check_rounds_asked
    from octavo.store import TerminalProgress, resolve_model

    saved = SavedProtocol.read(file)
    wanted = saved.rounds if rounds is None else rounds
    check_rounds_asked(wanted)
    path = resolve_model(model, progress=TerminalProgress())
    check_model(saved, path)
    with (
        old_source(checkout(), saved.commit) as old,
        raw_data(out, path, "regress") as raw,
    ):
        found = RegressRun(saved, regress_arms(path, saved.flags, saved.load, wanted, old))
        try:
            with watching() as watcher:
                bench_regress(found, raw, watcher)
        finally:
            if found.paired.cells:
                _show(found, plot, as_json)
    if found.slower:
        print("octavo: slower than the saved commit", file=sys.stderr)
        raise typer.Exit(1)


def _show(run: RegressRun, plot: Path | None, as_json: bool) -> None:
    from octavo.bench.paired_plot import plot_verdicts
    from octavo.bench.regress_report import report_lines

    print(json.dumps(run.as_object()) if as_json else "\n".join(report_lines(run)), flush=True)
    if plot is not None and run.verdicts:
        plot_verdicts(
            run.verdicts, f"{run.saved.model}: since {run.saved.commit[:12]}", ("saved commit", "now"), "rate", plot
        )
