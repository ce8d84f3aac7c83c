"""A run of `octavo bench decode` as a table. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.bench.decode import OURS, PEER, DecodeRun
from octavo.bench.stamp import machine_line, versions_line


def report_lines(run: DecodeRun) -> Iterator[str]:
    """Medians of the rounds (least to most), and ours over the peer's, round by round."""
    yield from run.outcome.lines()
    yield f"{run.model}; {machine_line(run.environment)}; {versions_line(run.environment)}"
    if run.peer is not None:
        yield f"{PEER}: {run.peer.line}"
    yield f"median of {len(run.rounds)} (least to most)"
    for title, name, unit in (
        ("first token, from process start", "first_token_s", "s"),
        (f"decode, {run.new_tokens} tokens", "decode_tps", "tokens/s"),
        (f"prefill, {run.prompt_tokens} tokens", "prefill_tps", "tokens/s"),
        ("peak memory", "peak_mib", "MiB"),
    ):
        told = f"{title:31}   {run.spread(OURS, name)} {unit}"
        if run.peer is not None and name != "first_token_s":
            told += f"   {PEER} {run.spread(PEER, name)}   ours ÷ {PEER} {run.ratio(name)}"
        yield told
