"""Percentiles and spreads against known answers."""

from __future__ import annotations

import random
import statistics

import pytest

from octavo.bench.percentiles import Quantiles, Spread, percentile


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        ([7.0], 0, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.5),
        ([3.0, 1.0, 2.0], 100, 3.0),
        (list(map(float, range(101))), 95, 95.0),
        ([0.0, 10.0], 99, 9.9),
        ([5.0, 5.0, 5.0], 95, 5.0),
    ],
    ids=str,
)
def test_a_percentile_lies_between_two_samples_by_interpolation(samples, percent, expected):
    assert percentile(samples, percent) == pytest.approx(expected)


def test_percentiles_agree_with_the_standard_library():
    draw = random.Random(3)
    samples = [draw.expovariate(1) for _ in range(257)]
    theirs = statistics.quantiles(samples, n=100, method="inclusive")
    assert [percentile(samples, each) for each in range(1, 100)] == pytest.approx(theirs)


@pytest.mark.parametrize(("samples", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_a_percentile_of_nothing_or_beyond_is_an_error(samples, percent):
    with pytest.raises(ValueError, match=r"percentile .* samples"):
        percentile(samples, percent)


def test_quantiles_of_nothing_are_none_and_say_of_how_many_they_are():
    assert Quantiles.of([]) is None
    found = Quantiles.of([0.3, 0.1, 0.2])
    assert found is not None
    assert (found.p50, found.count) == (0.2, 3)
    assert found.p50 <= found.p95 <= found.p99 <= 0.3


def test_a_spread_is_median_least_and_most():
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)
    assert str(Spread(1234.5, 1, 2000)) == "1,234.50 (1.00 to 2,000.00)"
