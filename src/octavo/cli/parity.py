"""`octavo parity`: does every route give the same answer? Exit status 1 if one does not."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from octavo.cli import engine_options as flags
from octavo.cli.options import option
from octavo.errors import InvalidRequest

MIN_TOKENS = 64


@flags.with_engine_flags("storage", "max_context", "prefix_cache", "context_limit_policy", "keep")
def parity(
    *,
    model: flags.Model = None,
    max_tokens: Annotated[int, option("-n", "--max-tokens", help="Tokens per prompt; at least 64.")] = MIN_TOKENS,
    inject_fault: Annotated[
        str | None, option("--inject-fault", metavar="ARM", help="Perturb one arm, to see that it is noticed.")
    ] = None,
    engine: flags.EngineFlags,
    force: flags.Force = False,
    as_json: flags.AsJson = False,
) -> None:
    """Run dense, paged, batched, chunked and command-line arms and compare tokens and logits with the reference."""
    if max_tokens < MIN_TOKENS:
        raise InvalidRequest(f"max tokens is {max_tokens}; a parity run needs at least {MIN_TOKENS}")
    config = engine.config(1, force=force)
    from octavo.parity import ARMS, run_parity

    if inject_fault is not None and inject_fault not in ARMS:
        raise InvalidRequest(f"arm {inject_fault!r} is unknown; choose one of {', '.join(ARMS)}")
    loaded = flags.load_weights(model, config)
    report = run_parity(
        loaded,
        config,
        num_tokens=max_tokens,
        fault=inject_fault,
        on_arm=lambda arm: print(arm.line(), file=sys.stderr if as_json else sys.stdout, flush=True),
    )
    if as_json:
        print(json.dumps(report.as_object()))
    else:
        print(f"{report.model}: {'equal' if report.equal else 'NOT EQUAL'} ({report.contract})")
    if not report.equal:
        raise typer.Exit(1)
