"""Which of two things that were measured in turn is faster: paired deltas against what a null arm shows.

Plain arithmetic over figures; knows neither what they are of nor who measured them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.bench.percentiles import Spread
from octavo.errors import EngineFault

# With independent noise the median of five deltas exceeds all five null deltas by chance in 1.2% of cells, that of
# three in 5%: too often where there are several cells.
LEAST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class PairedRound:
    """One round of one cell: the same figure, of which more is better, of three arms that took turns.

    `again` is the null arm: the baseline a second time, so that it differs from `baseline` by nothing but chance.
    Raises `ValueError` for a figure that is not finite and above 0.
    """

    baseline: float
    candidate: float
    again: float

    def __post_init__(self) -> None:
        for figure in (self.baseline, self.candidate, self.again):
            if not (math.isfinite(figure) and figure > 0):
                raise ValueError(f"a figure of a round is {figure}; it must be above 0")

    @property
    def delta(self) -> float:
        """Logarithm of candidate / baseline: twice as fast and half as fast are equally far from 0."""
        return math.log(self.candidate) - math.log(self.baseline)

    @property
    def null_delta(self) -> float:
        """Logarithm of again / baseline."""
        return math.log(self.again) - math.log(self.baseline)


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """One cell over its rounds. `delta` is the median of its rounds' deltas, `null_spread` the largest null delta
    in either direction; both are logarithms of ratios.
    """

    cell: str
    baseline: Spread
    candidate: Spread
    deltas: tuple[float, ...]
    null_deltas: tuple[float, ...]

    @classmethod
    def of(cls, cell: str, rounds: Sequence[PairedRound]) -> CellVerdict:
        """Raises `ValueError` without rounds."""
        if not rounds:
            raise ValueError(f"the cell {cell!r} has no rounds")
        return cls(
            cell,
            Spread.of([each.baseline for each in rounds]),
            Spread.of([each.candidate for each in rounds]),
            tuple(each.delta for each in rounds),
            tuple(each.null_delta for each in rounds),
        )

    @property
    def delta(self) -> float:
        return statistics.median(self.deltas)

    @property
    def null_spread(self) -> float:
        return max(abs(each) for each in self.null_deltas)

    @property
    def faster(self) -> Literal["candidate", "baseline"] | None:
        """Who is faster beyond the null spread; None if nobody is. A delta as large as the spread is not beyond it."""
        if self.delta > self.null_spread:
            return "candidate"
        return "baseline" if -self.delta > self.null_spread else None

    def as_object(self) -> dict[str, object]:
        return {
            "cell": self.cell,
            "rounds": len(self.deltas),
            "baseline": self.baseline.as_object(),
            "candidate": self.candidate.as_object(),
            "delta_percent": percent(self.delta),
            "null_spread_percent": percent(self.null_spread),
            "deltas_percent": [percent(each) for each in self.deltas],
            "null_deltas_percent": [percent(each) for each in self.null_deltas],
            "faster": self.faster,
        }


def percent(log_ratio: float) -> float:
    """What a logarithm of a ratio is in percent more (or less, below 0)."""
    return round(100 * math.expm1(log_ratio), 3)


def judge(
    cells: Mapping[str, Sequence[PairedRound]], asked: int, lost: Mapping[str, Sequence[str]] | None = None
) -> tuple[CellVerdict, ...]:
    """A verdict per cell, in their order. `lost` says why rounds of a cell are missing from `cells`.

    Raises `EngineFault`, which names each cell with fewer than `LEAST_ROUNDS` of the `asked` rounds and why, and if
    there is no cell at all: then nothing is concluded from the others either.
    """
    if not cells:
        raise EngineFault("no cell was measured; nothing is concluded")
    problems = []
    for cell, rounds in cells.items():
        if len(rounds) < LEAST_ROUNDS:
            why = "; ".join((lost or {}).get(cell, ())) or "no more were asked for"
            problems.append(f"{cell} has {len(rounds)} good rounds of {asked} ({why})")
    if problems:
        raise EngineFault(
            f"too few rounds: {', '.join(problems)}; at least {LEAST_ROUNDS} are needed, nothing is concluded"
        )
    return tuple(CellVerdict.of(cell, rounds) for cell, rounds in cells.items())


def candidate_wins(verdicts: Iterable[CellVerdict]) -> bool:
    """The rule of a storage flag: faster beyond the null spread in at least one cell, and slower beyond it in none."""
    found = {each.faster for each in verdicts}
    return "candidate" in found and "baseline" not in found
