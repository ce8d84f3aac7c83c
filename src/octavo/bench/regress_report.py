"""A run of `octavo bench regress` as a Markdown table. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.bench.decision import percent
from octavo.bench.stamp import machine_line, versions_line

if TYPE_CHECKING:
    from octavo.bench.regress import RegressRun


def report_lines(run: RegressRun) -> Iterator[str]:
    """Both codes of this run; what was saved stands beside and is not judged."""
    saved, stamp = run.saved, run.environment
    yield f"{machine_line(stamp)}; {versions_line(stamp)}"
    yield (
        f"{run.paired.candidate.shown}: commit {saved.commit[:12]} (saved {str(saved.environment['date'])[:10]}) "
        f"against now, {run.paired.rounds} rounds in turn, each on a fresh server; median (least to most)"
    )
    where = "on this machine, but in another run" if run.same_machine else "on another machine or with other versions"
    yield f"saved figures are {where}; they are not compared"
    yield ""
    yield "| figure | saved commit | now | now against it | null spread | when saved |"
    yield "|---|---|---|---|---|---|"
    for each in run.verdicts:
        mark = {"baseline": " SLOWER", "candidate": " faster", None: ""}[each.faster]
        yield (
            f"| {each.cell} | {each.baseline} | {each.candidate} | {percent(each.delta):+.1f} %{mark} | "
            f"{percent(each.null_spread):.1f} % | {saved.figures.get(each.cell, '')} |"
        )
    yield ""
    if run.problem is not None:
        yield f"Nothing is concluded: {run.problem}"
    elif run.slower:
        yield f"SLOWER beyond the null spread: {'; '.join(each.cell for each in run.slower)}"
    else:
        yield "No slowdown beyond the null spread."
