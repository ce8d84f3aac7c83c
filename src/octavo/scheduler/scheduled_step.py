"""What a scheduler hands out to be run. Owns nothing."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.cache.prefix_types import Snapshot
from octavo.request import RequestState
from octavo.step_batch import StepBatch


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step to run: `states[i]` is the request of `batch.rows[i]`. Ends with `complete` or `cancel`.

    Before it runs, the slot of each row i in `restores` gets what that snapshot holds outside of blocks; after it, a
    snapshot of the same is taken of each row in `captures`, for `complete`.
    """

    batch: StepBatch
    states: tuple[RequestState, ...]
    restores: tuple[tuple[int, Snapshot], ...] = ()
    captures: tuple[int, ...] = ()
