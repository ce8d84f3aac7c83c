"""Combinations of parameters of which the tests by day run half."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def by_day(*values: Sequence[Any]) -> list[Any]:
    """All combinations of `values` as parameters, every other one of them nightly: each value keeps half of its own."""
    places = product(*(range(len(each)) for each in values))
    return [
        pytest.param(*each, marks=pytest.mark.nightly if sum(place) % 2 else ())
        for place, each in zip(places, product(*values), strict=True)
    ]
