"""Where in a pool a dense sequence's contiguous run is cut, so that runs to come still find room. Pure arithmetic.

Cached blocks can be taken, and so do not keep anybody waiting. But a run that is put beside them, where it evicts
nothing, may leave room for fewer runs than one that is put over them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

Use = float | None
"""Of one block: None if it cannot be taken, 0 if it is free, else when its cached rows were last used."""

SPARED: Use = math.inf
"""The use of a block that could be taken, by another run than this one."""


def place_run(uses: Sequence[Use], length: int, longest: int) -> int | None:
    """The best start for a run of `length` blocks (at least 1), None if there is none.

    Best: as many runs of `longest` blocks are left as if it were put as low as possible, and what it evicts was used
    least recently; the lowest of those. Where nothing is cached, the lowest there is. Costs O(blocks).
    """
    longest, best = max(longest, length), (SPARED, -1)
    fitting = [span for span in _takeable(uses) if len(span) >= length]
    most = _lost(fitting[0], fitting[0].start, length, longest) if fitting else 0
    for span in fitting:
        for start, newest in enumerate(_newest(uses[span.start : span.stop], length), span.start):
            if (newest, start) < best and _lost(span, start, length, longest) <= most:
                best = (newest, start)
    return best[1] if best[0] != SPARED else None


def leaves_room(uses: Sequence[Use], start: int, length: int, longest: int) -> bool:
    """Whether the run at `start` leaves as many runs of `longest` blocks as one that is put as low as possible."""
    longest = max(longest, length)
    spans = list(_takeable(uses))
    least = next((_lost(span, span.start, length, longest) for span in spans if len(span) >= length), None)
    if least is None:
        return True
    left = _takeable([*uses[:start], *[None] * length, *uses[start + length :]])
    return _count(left, longest) >= _count(spans, longest) - least


def _takeable(uses: Sequence[Use]) -> Iterator[range]:
    """The longest spans of blocks that can all be taken."""
    start = 0
    for taken, group in groupby(use is None for use in uses):
        stop = start + sum(1 for _ in group)
        if not taken:
            yield range(start, stop)
        start = stop


def _count(spans: Iterable[range], longest: int) -> int:
    return sum(len(span) // longest for span in spans)


def _lost(span: range, start: int, length: int, longest: int) -> int:
    """Runs of `longest` blocks that `span` has fewer after `[start, start + length)` was cut from it."""
    return len(span) // longest - (start - span.start) // longest - (span.stop - start - length) // longest


def _newest(uses: Sequence[Use], length: int) -> Iterator[float]:
    """The latest use in each `length` consecutive blocks."""
    falling: deque[tuple[int, float]] = deque()
    for i, use in enumerate(uses):
        assert use is not None, "a block that cannot be taken is in no span"
        while falling and falling[-1][1] <= use:
            falling.pop()
        falling.append((i, use))
        if falling[0][0] <= i - length:
            falling.popleft()
        if i >= length - 1:
            yield falling[0][1]
