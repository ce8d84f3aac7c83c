"""An overhead run as a table, with the goals beside the figures. Judges only what it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from octavo.bench.overhead import FIGURES, VIEWER_FIGURES, Load
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import machine_line

if TYPE_CHECKING:
    from octavo.bench.overhead import OverheadRound, OverheadRun

MOST_LOST_SHARE = 0.05
MOST_VIEWER_SHARE = 0.01
LEAST_TOKENS_PER_WEB_CPU_S = 3000
MOST_FIRST_TOKEN_ADDED_S = 0.010


def overhead_lines(run: OverheadRun) -> Iterator[str]:
    """Medians of the rounds (least to most), and each process's share of a CPU."""
    protocol = run.protocol
    spreads = {name: run.spread(of) for name, of in FIGURES.items()}
    lost, added = spreads["lost_share"], spreads["first_token_added_s"]
    per_core = spreads["tokens_per_web_cpu_s"]
    yield from run.outcome.lines()
    yield machine_line(run.environment)
    yield (
        f"mock model, {protocol.step_ms:g} ms a step; prompts of {protocol.prompt_tokens}, answers of "
        f"{protocol.max_tokens} tokens; median of {len(run.rounds)} rounds (least to most)"
    )
    yield ""
    yield f"engine alone, {protocol.clients} sequences    {spreads['engine_alone_tps']} tokens/s"
    yield f"server, {protocol.clients} streams           {spreads['server_tps']} tokens/s"
    yield f"  lost to the server         {_scaled(lost, 100)} %   goal ≤ 5: {_met(lost.median <= MOST_LOST_SHARE)}"
    yield _shares(run, lambda each: each.served)
    if protocol.viewer:
        yield from _viewer_lines(run)
    yield f"server, {protocol.many_clients} streams           {spreads['many_clients_tps']} tokens/s"
    met = _met(per_core.median >= LEAST_TOKENS_PER_WEB_CPU_S)
    yield f"  per CPU-second of the web process {per_core} tokens   goal ≥ 3,000: {met}"
    yield _shares(run, lambda each: each.many)
    yield f"first token, engine alone    {_scaled(spreads['first_token_alone_s'], 1e3)} ms"
    yield f"first token, over HTTP       {_scaled(spreads['first_token_http_s'], 1e3)} ms"
    met = _met(added.median <= MOST_FIRST_TOKEN_ADDED_S)
    yield f"  added                      {_scaled(added, 1e3)} ms   goal ≤ 10: {met}"


def _viewer_lines(run: OverheadRun) -> Iterator[str]:
    share, cpu = run.spread(VIEWER_FIGURES["viewer_share"]), run.spread(VIEWER_FIGURES["viewer_cpu_share"])
    met = _met(share.median <= MOST_VIEWER_SHARE)
    yield f"  lost to one viewer         {_scaled(share, 100)} %   goal ≤ 1: {met}"
    yield f"  CPU of the engine for it   {_scaled(cpu, 100)} % of one"


def _shares(run: OverheadRun, load: Callable[[OverheadRound], Load]) -> str:
    loads = [load(each) for each in run.rounds]
    names = ("web", [each.web_cpu_s for each in loads]), ("engine", [each.engine_cpu_s for each in loads])
    parts = [*names, ("clients", [each.client_cpu_s for each in loads])]
    wall = sum(each.wall_s for each in loads)
    bundled = sum(each.output_tokens for each in loads) / sum(each.chunks for each in loads)
    used = ", ".join(f"{name} {sum(seconds) / wall:.0%}" for name, seconds in parts)
    return f"  CPU used: {used} of one; {bundled:.2f} tokens per chunk"


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.low * factor, spread.high * factor)


def _met(met: bool) -> str:
    return "met" if met else "MISSED"
