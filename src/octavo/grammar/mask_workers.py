"""Fills the masks of a whole batch in threads of its own, while the caller's forward runs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from octavo.grammar.limits import STEP_S
from octavo.grammar.matcher import GrammarMatcher, MaskRow
from octavo.grammar.stacks import deep_stacks

_MOST_THREADS = 8


@dataclass(slots=True, eq=False)
class _Fill:
    """One row's work. `began` is when a thread took it."""

    matcher: GrammarMatcher
    row: MaskRow
    batch: PendingMasks
    began: float | None = None
    done: bool = False
    given_up: bool = False

    def is_late(self, step_s: float) -> bool:
        """Whether a thread has had it for more than `step_s` seconds and nobody has noticed."""
        open_ = not (self.done or self.given_up) and self.began is not None
        return open_ and time.monotonic() - (self.began or 0.0) > step_s


@dataclass(slots=True, eq=False)
class PendingMasks:
    """Masks that are being filled, of which `num_left` are not. `rows` are the batch's rows that have one."""

    rows: list[int]
    bits: npt.NDArray[np.int32]  # [len(rows), ceil(V / 32)]
    changed: threading.Condition = field(default_factory=threading.Condition)
    fills: list[_Fill] = field(default_factory=list)
    num_left: int = 0


class MaskWorkers:
    """Threads that start with the first mask and end with this object. Used by one thread."""

    def __init__(self, vocab_size: int, num_threads: int | None = None, step_s: float = STEP_S) -> None:
        """`step_s` is the most seconds one row may take. Half of the processors work if no number is given."""
        self._words = -(-vocab_size // 32)
        self._num_threads = num_threads or max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))
        self.step_s = step_s
        self._queue: SimpleQueue[_Fill | None] = SimpleQueue()
        self._started = 0
        self._latest: PendingMasks | None = None
        weakref.finalize(self, _end, self._queue, self._num_threads)

    def begin(self, matchers: Sequence[GrammarMatcher | None]) -> PendingMasks | None:
        """Fill the masks of those that have a matcher; None if nobody has."""
        if self._latest is not None:
            self.finish(self._latest)  # of a step that was broken off, perhaps
        rows = [index for index, matcher in enumerate(matchers) if matcher is not None]
        if not rows:
            return None
        pending = PendingMasks(rows, np.empty((len(rows), self._words), dtype=np.int32))
        pending.fills = [
            _Fill(matcher, pending.bits[index], pending)
            for index, matcher in enumerate(matcher for matcher in matchers if matcher is not None)
        ]
        pending.num_left = len(rows)
        while self._started < self._num_threads:
            self._start()
        for fill in pending.fills:
            self._queue.put(fill)
        self._latest = pending
        return pending

    def finish(self, pending: PendingMasks) -> npt.NDArray[np.int32]:
        """The bits, once they are filled. A row that takes too long is given up, and its matcher fails."""
        self._latest = None
        with pending.changed:
            while pending.num_left:
                pending.changed.wait(self.step_s / 4)  # woken by the last row
                for fill in pending.fills:
                    if fill.is_late(self.step_s):
                        fill.given_up = True
                        pending.num_left -= 1
                        fill.matcher.fail(f"one step took more than {self.step_s:g} s", "too complex")
                        self._start()  # in the place of the thread that is stuck
            stuck = [index for index, fill in enumerate(pending.fills) if fill.given_up]
            if stuck:
                pending.bits = pending.bits.copy()  # for its thread may still write there
                pending.bits[stuck] = -1
        return pending.bits

    def _start(self) -> None:
        self._started += 1
        thread = threading.Thread(target=_work, args=(self._queue,), name="octavo-masks", daemon=True)
        with deep_stacks():
            thread.start()


def _work(queue: SimpleQueue[_Fill | None]) -> None:
    while (fill := queue.get()) is not None:
        fill.began = time.monotonic()
        try:
            fill.matcher.fill(fill.row)
        except Exception as error:  # noqa: BLE001 - whatever the library raises ends this request alone
            fill.matcher.fail(f"{type(error).__name__}: {error}", "fault")
            fill.row.fill(-1)
        with fill.batch.changed:
            if fill.given_up:
                return  # another has taken this thread's place
            fill.done = True
            fill.batch.num_left -= 1
            if not fill.batch.num_left:
                fill.batch.changed.notify()
        del fill  # hold nothing while there is nothing to do


def _end(queue: SimpleQueue[_Fill | None], count: int) -> None:
    for _ in range(count):
        queue.put(None)
