"""`octavo parity`: does every route give the same answer? Exit status 1 if one does not."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from octavo.cli import engine_options as flags
from octavo.cli.options import list_option, option, texts
from octavo.errors import InvalidRequest

MIN_TOKENS = 64


@flags.with_engine_flags(
    *("storage", "max_context", "prefix_cache", "context_limit_policy", "keep"),
    *("max_batch_tokens", "prefill_chunk", "prefill_grant_interval"),
)
def parity(
    *,
    model: flags.Model = None,
    max_tokens: Annotated[int, option("-n", "--max-tokens", help="Tokens per prompt; at least 64.")] = MIN_TOKENS,
    arm: Annotated[
        list[str] | None, list_option("--arm", help="Run this arm alone; may be given several times.")
    ] = None,
    inject_fault: Annotated[
        str | None, option("--inject-fault", metavar="ARM", help="Perturb one arm, to see that it is noticed.")
    ] = None,
    engine: flags.EngineFlags,
    force: flags.Force = False,
    as_json: flags.AsJson = False,
) -> None:
    """Run dense, paged, batched, command-line, server and other arms; compare tokens and logits with a reference."""
    if max_tokens < MIN_TOKENS:
        raise InvalidRequest(f"max tokens is {max_tokens}; a parity run needs at least {MIN_TOKENS}")
    config = engine.config(1, force=force)
    chosen = texts(arm, "--arm")
    from octavo.parity import check_arm, run_parity

    for name in (*chosen, *([] if inject_fault is None else [inject_fault])):
        check_arm(name)
    loaded = flags.load_weights(model, config)
    lines = sys.stderr if as_json else sys.stdout
    report = run_parity(
        loaded,
        config,
        num_tokens=max_tokens,
        fault=inject_fault,
        arms=chosen,
        on_arm=lambda found: print(found.line(), file=lines, flush=True),
        on_skip=lambda name, reason: print(f"{name:<22} skipped: {reason}", file=lines, flush=True),
    )
    if as_json:
        print(json.dumps(report.as_object()))
    else:
        print(f"{report.model}: {'equal' if report.equal else 'NOT EQUAL'} ({report.contract})")
    if not report.equal:
        raise typer.Exit(1)
