"""Follows the grammars of a whole batch in threads of its own: fills masks while the caller's forward runs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from octavo.grammar.limits import STEP_S
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.stacks import deep_stacks

_MOST_THREADS = 8


@dataclass(slots=True, eq=False)
class _Task:
    """What is to be done with one matcher. `began` is when a thread took it; `failed` if it raised."""

    matcher: GrammarMatcher
    work: Callable[[], None]
    group: _Group
    began: float | None = None
    done: bool = False
    failed: bool = False
    given_up: bool = False

    def is_late(self, step_s: float) -> bool:
        """Whether a thread has had it for more than `step_s` seconds and nobody has noticed."""
        open_ = not (self.done or self.given_up) and self.began is not None
        return open_ and time.monotonic() - (self.began or 0.0) > step_s


@dataclass(slots=True, eq=False)
class _Group:
    """Tasks that are waited for together, of which `num_left` are not done."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    tasks: list[_Task] = field(default_factory=list)
    num_left: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PendingMasks:
    """Masks that are being filled. `rows` are the batch's rows that have one."""

    rows: list[int]
    bits: npt.NDArray[np.int32]  # [len(rows), ceil(V / 32)]
    group: _Group


class MaskWorkers:
    """Threads that start with the first matcher and end with this object. Used by one thread."""

    def __init__(self, vocab_size: int, num_threads: int | None = None, step_s: float = STEP_S) -> None:
        """`step_s` is the most seconds one row may take. Half of the processors work if no number is given."""
        self._words = -(-vocab_size // 32)
        self._num_threads = num_threads or max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))
        self.step_s = step_s
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._started = 0
        self._latest: _Group | None = None
        weakref.finalize(self, _end, self._queue, self._num_threads)

    def begin(self, matchers: Sequence[GrammarMatcher | None]) -> PendingMasks | None:
        """Fill the masks of those that have a matcher; None if nobody has."""
        rows = [index for index, matcher in enumerate(matchers) if matcher is not None]
        if not rows:
            return None
        bits = np.empty((len(rows), self._words), dtype=np.int32)
        asked = [matcher for matcher in matchers if matcher is not None]
        group = self._ask([(matcher, partial(matcher.fill, row)) for matcher, row in zip(asked, bits, strict=True)])
        return PendingMasks(rows, bits, group)

    def finish(self, pending: PendingMasks) -> npt.NDArray[np.int32]:
        """The bits, once they are filled. A row that takes too long is given up, and its matcher fails."""
        self._wait(pending.group)
        bits, tasks = pending.bits, pending.group.tasks
        if any(task.given_up for task in tasks):
            bits = bits.copy()  # for its thread may still write there
        bits[[index for index, task in enumerate(tasks) if task.failed or task.given_up]] = -1
        return bits

    def forced(self, asked: Sequence[tuple[GrammarMatcher, int]]) -> list[list[int]]:
        """Of each matcher, the next tokens that it leaves no choice about, at most so many; they are noted. Waits."""
        found: list[list[int]] = [[] for _ in asked]
        work = [
            (matcher, partial(_follow, matcher, most, self._words, into))
            for (matcher, most), into in zip(asked, found, strict=True)
        ]
        group = self._ask(work)
        self._wait(group)
        return [[] if task.given_up else into for task, into in zip(group.tasks, found, strict=True)]

    def _ask(self, work: Sequence[tuple[GrammarMatcher, Callable[[], None]]]) -> _Group:
        if self._latest is not None:
            self._wait(self._latest)  # of a step that was broken off, perhaps
        group = _Group(num_left=len(work))
        group.tasks = [_Task(matcher, act, group) for matcher, act in work]
        while work and self._started < self._num_threads:
            self._start()
        for task in group.tasks:
            self._queue.put(task)
        self._latest = group
        return group

    def _wait(self, group: _Group) -> None:
        """Until all is done. What takes too long is given up, and its matcher fails."""
        self._latest = None
        with group.changed:
            while group.num_left:
                group.changed.wait(self.step_s / 4)  # woken by the last one
                for task in group.tasks:
                    if task.is_late(self.step_s):
                        task.given_up = True
                        group.num_left -= 1
                        task.matcher.fail(f"one step took more than {self.step_s:g} s", "too complex")
                        self._start()  # in the place of the thread that is stuck

    def _start(self) -> None:
        self._started += 1
        thread = threading.Thread(target=_work, args=(self._queue,), name="octavo-masks", daemon=True)
        with deep_stacks():
            thread.start()


def _follow(matcher: GrammarMatcher, most: int, words: int, into: list[int]) -> None:
    into += matcher.forced(most, np.empty(words, dtype=np.int32))


def _work(queue: SimpleQueue[_Task | None]) -> None:
    while (task := queue.get()) is not None:
        task.began = time.monotonic()
        try:
            task.work()
        except Exception as error:  # noqa: BLE001 - whatever the library raises ends this request alone
            task.matcher.fail(f"{type(error).__name__}: {error}", "fault")
            task.failed = True
        with task.group.changed:
            if task.given_up:
                return  # another has taken this thread's place
            task.done = True
            task.group.num_left -= 1
            if not task.group.num_left:
                task.group.changed.notify()
        del task  # hold nothing while there is nothing to do


def _end(queue: SimpleQueue[_Task | None], count: int) -> None:
    for _ in range(count):
        queue.put(None)
