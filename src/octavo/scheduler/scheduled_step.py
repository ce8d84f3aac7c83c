"""What a scheduler hands out to be run. Owns nothing."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.cache.prefix_types import Snapshot
from octavo.request import RequestState
from octavo.step_batch import StepBatch

UNKNOWN_TOKEN = -1


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step to run: `states[i]` is the request of `batch.rows[i]`. Ends with `complete` or `cancel`.

    One that follows another before that one's tokens are known has one row per request of that which goes on, and
    `follows[i]` is the row there whose token is the only one of row i; the ids in `batch` are UNKNOWN_TOKEN.

    Before it runs, the slot of each row i in `restores` gets what that snapshot holds outside of blocks; after it, a
    snapshot of the same is taken of each row in `captures`, for `complete`.
    """

    batch: StepBatch
    states: tuple[RequestState, ...]
    restores: tuple[tuple[int, Snapshot], ...] = ()
    captures: tuple[int, ...] = ()
    follows: tuple[int, ...] | None = None
