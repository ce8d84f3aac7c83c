"""Paired rounds as a picture: each round's delta, the median, and the null spread that it has to clear."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from octavo.bench.decision import CellVerdict, percent
from octavo.bench.plot import draw_spreads, finish_axis, new_figure, write_figure


def plot_verdicts(verdicts: Sequence[CellVerdict], title: str, names: tuple[str, str], unit: str, path: Path) -> None:
    """Figures of both arms (`names`: baseline, candidate) in `unit`, and their deltas, cell by cell, to `path`.

    Raises `InvalidRequest` if it cannot be written.
    """
    figure = new_figure(title, width=max(8.0, 2.5 * len(verdicts)), height=7)
    above, below = figure.subplots(2, 1)
    at = range(len(verdicts))
    draw_spreads(above, [each - 0.05 for each in at], [each.baseline for each in verdicts], names[0], joined=False)
    draw_spreads(above, [each + 0.05 for each in at], [each.candidate for each in verdicts], names[1], joined=False)
    above.set_title(f"{unit}, median (least to most)")
    finish_axis(above)
    for index, each in enumerate(verdicts):
        spread = percent(each.null_spread)
        below.fill_between([index - 0.3, index + 0.3], percent(-each.null_spread), spread, color="0.85")
        below.plot([index - 0.15] * len(each.null_deltas), list(map(percent, each.null_deltas)), "x", color="0.5")
        below.plot([index + 0.15] * len(each.deltas), list(map(percent, each.deltas)), "o", color="C1", alpha=0.5)
        below.plot([index - 0.3, index + 0.3], [percent(each.delta)] * 2, color="C1")
    below.axhline(0, color="0.3", linewidth=0.8)
    below.grid(visible=True, alpha=0.3)
    below.set_title(f"{names[1]} against {names[0]}, % (line: median; band and crosses: the null arm)")
    for axis in (above, below):
        axis.set_xlim(-0.5, len(verdicts) - 0.5)
        axis.set_xticks(list(at), [re.sub(", |: ", "\n", each.cell) for each in verdicts])
    above.legend()
    write_figure(figure, path)
