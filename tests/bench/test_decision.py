"""The decision rule on synthetic rounds whose answer is known, and what must hold of any rounds."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.bench.decision import LEAST_ROUNDS, CellVerdict, PairedRound, candidate_wins, judge, percent
from octavo.errors import EngineFault

NOISE = (0.0, 0.01, -0.02, 0.015, -0.005)  # of a null arm: its spread is 2%
SPREAD = 0.02
SHIFTS = st.floats(-1.0, 1.0)
NULLS = st.lists(st.floats(-0.3, 0.3), min_size=LEAST_ROUNDS, max_size=9)
BASES = st.floats(1e-3, 1e6)


def rounds_of(shift: float, nulls: tuple[float, ...] = NOISE, base: float = 100.0) -> list[PairedRound]:
    """Rounds in which the candidate is always faster by the logarithm `shift`, on a machine that drifts."""
    drifting = [base * (1 + 0.3 * index) for index in range(len(nulls))]
    return [
        PairedRound(each, each * math.exp(shift), each * math.exp(null))
        for each, null in zip(drifting, nulls, strict=True)
    ]


def verdict(rounds: list[PairedRound]) -> CellVerdict:
    return CellVerdict.of("cell", rounds)


@pytest.mark.parametrize(
    ("shifts", "wins"),
    [
        ((0.05,), True),
        ((-0.05,), False),
        ((0.01,), False),
        ((0.0,), False),
        ((0.05, 0.0, -0.01), True),
        ((0.05, 0.05, -0.05), False),
        ((0.0, 0.01, -0.01), False),
        ((1.0, 1.0, -0.021), False),
    ],
    ids=str,
)
def test_the_candidate_wins_if_it_is_faster_in_a_cell_and_slower_in_none(shifts: tuple[float, ...], wins: bool) -> None:
    verdicts = judge({f"cell {index}": rounds_of(shift) for index, shift in enumerate(shifts)}, 5)
    assert [each.faster for each in verdicts] == [
        "candidate" if shift > SPREAD else "baseline" if shift < -SPREAD else None for shift in shifts
    ]
    assert candidate_wins(verdicts) is wins


def test_a_drift_that_all_arms_share_does_not_count() -> None:
    """The last round's figures are more than twice the first one's; each delta is of one round."""
    found = verdict(rounds_of(0.05))
    assert found.delta == pytest.approx(0.05)
    assert found.null_spread == pytest.approx(SPREAD)
    assert percent(found.delta) == pytest.approx(5.127)


def test_equal_figures_are_a_tie_that_the_baseline_keeps() -> None:
    [found] = judge({"cell": [PairedRound(50.0, 50.0, 50.0)] * 5}, 5)
    assert (found.delta, found.null_spread, found.faster) == (0.0, 0.0, None)
    assert not candidate_wins([found])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_delta_as_large_as_the_null_spread_does_not_clear_it(sign: int) -> None:
    factor = 2.0**sign  # exact in binary, so that both logarithms are the same number
    assert verdict([PairedRound(1.0, factor, 2.0)] * 5).faster is None
    assert verdict([PairedRound(1.0, factor * 1.01**sign, 2.0)] * 5).faster == ("candidate" if sign > 0 else "baseline")


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_outliers_of_five_candidate_rounds_change_nothing(count: int) -> None:
    rounds = rounds_of(0.0)
    for index in range(count):
        rounds[index] = PairedRound(100.0, 1e6, 100.0)
    assert verdict(rounds).faster is None
    rounds = rounds_of(0.05)
    for index in range(count):
        rounds[index] = PairedRound(100.0, 1e-6, 100.0)
    assert verdict(rounds).faster == "candidate"


def test_one_outlier_of_the_null_arm_shows_a_machine_on_which_nothing_can_be_told() -> None:
    assert verdict(rounds_of(0.3, (0.0, 0.0, 0.0, 0.0, -0.4))).faster is None
    assert verdict(rounds_of(-0.3, (0.0, 0.0, 0.0, 0.0, 0.4))).faster is None
    assert verdict(rounds_of(0.3, (0.0, 0.0, 0.0, 0.0, -0.2))).faster == "candidate"


def test_noise_alone_rarely_decides() -> None:
    """1.2% of cells a side with five rounds; of 2,000 drawn cells, 5 to 50 but for two chances in a million."""
    draw = random.Random(7)

    def figure() -> float:
        return math.exp(draw.gauss(0, 0.05))

    drawn = [[PairedRound(figure(), figure(), figure()) for _ in range(5)] for _ in range(2000)]
    assert 5 <= sum(verdict(each).faster == "candidate" for each in drawn) <= 50


@pytest.mark.parametrize("count", range(LEAST_ROUNDS))
def test_a_cell_with_too_few_rounds_is_named_with_the_reason_and_nothing_is_decided(count: int) -> None:
    cells = {"prompt 512, 4 clients": rounds_of(9.0), "prompt 512, 8 clients": rounds_of(9.0)[:count]}
    with pytest.raises(EngineFault) as caught:
        judge(cells, 5, {"prompt 512, 8 clients": ["dense, round 2: HTTP 500"]})
    assert str(caught.value) == (
        f"too few rounds: prompt 512, 8 clients has {count} good rounds of 5 (dense, round 2: HTTP 500); "
        "at least 5 are needed, nothing is concluded"
    )


def test_no_cell_decides_nothing() -> None:
    with pytest.raises(EngineFault, match="no cell was measured"):
        judge({}, 5)
    assert not candidate_wins([])


@pytest.mark.parametrize("figure", [0.0, -1.0, float("nan"), float("inf")])
def test_a_figure_that_cannot_be_compared_is_no_round(figure: float) -> None:
    for arms in ((figure, 1.0, 1.0), (1.0, figure, 1.0), (1.0, 1.0, figure)):
        with pytest.raises(ValueError, match="must be above 0"):
            PairedRound(*arms)


@given(SHIFTS, NULLS, BASES)
def test_arms_that_change_places_change_the_verdict_round(shift: float, nulls: list[float], base: float) -> None:
    """Against a baseline that is as steady, the other arm wins by as much."""
    spread = max(map(abs, nulls))
    assume(abs(abs(shift) - spread) > 1e-9)
    forth = verdict(rounds_of(shift, tuple(nulls), base))
    back = verdict(
        [
            PairedRound(each.candidate, each.baseline, each.candidate * each.again / each.baseline)
            for each in rounds_of(shift, tuple(nulls), base)
        ]
    )
    other = {"candidate": "baseline", "baseline": "candidate", None: None}
    assert back.faster == other[forth.faster]
    assert back.delta == pytest.approx(-forth.delta, abs=1e-9)


@given(SHIFTS, NULLS, st.floats(1e-6, 1e6))
def test_another_unit_changes_no_verdict(shift: float, nulls: list[float], factor: float) -> None:
    assume(abs(abs(shift) - max(map(abs, nulls))) > 1e-9)
    rounds = rounds_of(shift, tuple(nulls))
    scaled = [PairedRound(each.baseline * factor, each.candidate * factor, each.again * factor) for each in rounds]
    assert verdict(scaled).faster == verdict(rounds).faster


@given(NULLS, st.floats(-0.999, 0.999))
def test_a_shift_within_the_null_spread_never_decides(nulls: list[float], share: float) -> None:
    spread = max(map(abs, nulls))
    assume(spread == 0 or spread > 1e-9)  # or rounding is larger
    [found] = judge({"cell": rounds_of(share * spread, tuple(nulls))}, len(nulls))
    assert found.faster is None
    assert not candidate_wins([found])


@given(NULLS, st.randoms())
def test_the_order_of_rounds_does_not_matter(nulls: list[float], draw: random.Random) -> None:
    rounds = rounds_of(0.1, tuple(nulls))
    mixed = list(rounds)
    draw.shuffle(mixed)
    assert verdict(mixed).faster == verdict(rounds).faster


@given(SHIFTS, st.floats(0, 1), NULLS)
def test_a_faster_candidate_never_loses_what_a_slower_one_won(shift: float, more: float, nulls: list[float]) -> None:
    if candidate_wins([verdict(rounds_of(shift, tuple(nulls)))]):
        assert candidate_wins([verdict(rounds_of(shift + more + 1e-12, tuple(nulls)))])
