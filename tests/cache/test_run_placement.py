"""`place_run` and `leaves_room` against every start tried in turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.run_placement import SPARED, leaves_room, place_run

USES = st.lists(st.sampled_from([None, 0, 0, 1, 2, 5, SPARED]), min_size=1, max_size=24)


def runs_of(uses: list[float | None], length: int) -> int:
    """How many runs of `length` can be taken at the same time."""
    count = run = 0
    for use in uses:
        run = 0 if use is None else run + 1
        if run == length:
            count, run = count + 1, 0
    return count


def left(uses: list[float | None], start: int, length: int, longest: int) -> int:
    return runs_of([*uses[:start], *[None] * length, *uses[start + length :]], longest)


def starts_of(uses: list[float | None], length: int) -> list[int]:
    return [i for i in range(len(uses) - length + 1) if None not in uses[i : i + length]]


@given(USES, st.integers(1, 6), st.integers(0, 8))
def test_a_run_evicts_what_was_used_least_recently_of_all_that_leave_as_many_long_runs_as_the_lowest(
    uses: list[float | None], length: int, longest: int
) -> None:
    starts, most = starts_of(uses, length), max(length, longest)
    best = None
    for start in starts:
        if left(uses, start, length, most) >= left(uses, starts[0], length, most):
            newest = max(use for use in uses[start : start + length] if use is not None)
            if newest != SPARED and (best is None or newest < best[0]):
                best = (newest, start)
        assert leaves_room(uses, start, length, longest) == (
            left(uses, start, length, most) >= left(uses, starts[0], length, most)
        )
    assert place_run(uses, length, longest) == (None if best is None else best[1])


def test_where_nothing_is_cached_a_run_is_as_low_as_it_can_be() -> None:
    assert place_run([0, None, 0, 0, 0, 0, 0], 3, 3) == 2


def test_a_run_that_would_split_the_room_for_another_is_put_over_cached_blocks_instead() -> None:
    cached_at_the_front = [7, 7, 0, 0, 0, 0, 0, 0]
    assert place_run(cached_at_the_front, 4, 4) == 4
    assert place_run([*cached_at_the_front[:7], None], 4, 4) == 2, "there is room for one only"
    assert place_run([7, 7, *[0] * 8, 9], 4, 4) == 2
    assert place_run([3, 3, 3, 3, 0, 0, 0, 9], 4, 4) == 0
