"""What a scheduler hands out to be run. Owns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from octavo.cache.prefix_types import Snapshot
from octavo.request import RequestState
from octavo.step_batch import StepBatch

UNKNOWN_TOKEN = -1


class RowOut(NamedTuple):
    """A request's row in a step that is out: its tokens, those computed after it, and which of the tokens that the step
    draws is its own; -1 for none.
    """

    num_tokens: int
    stop: int
    drawn: int


NOTHING_OUT: Mapping[str, RowOut] = {}


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step to run: `states[i]` is the request of `batch.rows[i]`. Ends with `complete` or `cancel`.

    One that follows another before that one's tokens are known has `follows`: the only token of row i is the
    `follows[i]`-th that the other draws, and stands in `batch` as UNKNOWN_TOKEN; -1 for rows whose tokens are known.

    Before it runs, the slot of each row i in `restores` gets what that snapshot holds outside of blocks; after it, a
    snapshot of the same is taken of each row in `captures`, for `complete`.
    """

    batch: StepBatch
    states: tuple[RequestState, ...]
    restores: tuple[tuple[int, Snapshot], ...] = ()
    captures: tuple[int, ...] = ()
    follows: tuple[int, ...] | None = None
