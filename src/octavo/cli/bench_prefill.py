"""`octavo bench prefill`: how fast prompts are computed, by their length."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli import engine_options as flags
from octavo.cli.bench_options import PeerPython, Plot, PromptLengths, Rounds, check_plot_flag, counts

if TYPE_CHECKING:
    from octavo.bench.prefill import PrefillRun


@flags.with_engine_flags("prefix_cache", "context_limit_policy", "keep")
def prefill(
    *,
    model: flags.Model = None,
    prompt_tokens: PromptLengths = "128,512,2048",
    rounds: Rounds = 5,
    engine: flags.EngineFlags,
    force: flags.Force = False,
    peer_python: PeerPython = None,
    plot: Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """One sequence: prompt tokens/s by length, beside llama.cpp where it is installed, in fresh processes in turn."""
    check_plot_flag(plot)
    from dataclasses import replace

    from octavo.bench.peers import find_peer
    from octavo.bench.prefill import PrefillRun, bench_prefill, check_lengths
    from octavo.engine.loaded_model import plan_model
    from octavo.store import TerminalProgress, resolve_model

    lengths = counts(prompt_tokens, "prompt length", "numbers of tokens such as 128,512,2048")
    config = replace(engine.config(1, force=force), prefix_cache=False)
    plan = plan_model(resolve_model(model, progress=TerminalProgress()), config)
    check_lengths(plan, lengths, rounds)
    path = plan.checkpoint.path
    run = PrefillRun(path.name, lengths, rounds, find_peer(path, peer_python))
    try:
        bench_prefill(
            run,
            plan,
            config,
            on_round=lambda round_: print(f"octavo: round {round_ + 1} of {rounds}", file=sys.stderr, flush=True),
        )
    finally:  # what ends it early, an interrupt too, loses nothing that was measured
        if run.engines:
            _show(run, plot, as_json)


def _show(run: PrefillRun, plot: Path | None, as_json: bool) -> None:
    from octavo.bench.prefill_report import plot_prefill, report_lines

    print(json.dumps(run.as_object()) if as_json else "\n".join(report_lines(run)), flush=True)
    if plot is not None:
        plot_prefill(run, plot)
