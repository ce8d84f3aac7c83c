"""Profiles an engine's next steps with torch's profiler, each under a label of its own, into a Chrome trace."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from octavo.engine.profile import Profile, ProfileSettings
from octavo.errors import InvalidRequest
from octavo.step_batch import StepBatch

STEP_LABEL = "octavo.step"
_log = logging.getLogger("octavo.profile")


@dataclass(slots=True)
class _Running:
    settings: ProfileSettings
    torch_profile: profile | None = None  # from the first step on
    num_steps: int = 0


class StepProfiler:
    """Idle until `start`. Used by the thread that runs the steps, whose work alone is seen."""

    def __init__(self, device: str) -> None:
        """`device` is the kind of device that the steps run on, as in `torch.device.type`."""
        self._activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
        self._running: _Running | None = None
        self._latest: Profile | None = None
        self._numbers = itertools.count(1)

    def start(self, settings: ProfileSettings) -> None:
        """Profile the next steps, until there are as many as asked for, or `stop`.

        Raises `InvalidRequest` if steps are being profiled already.
        """
        if self._running is not None:
            raise InvalidRequest("steps are being profiled already; stop that first")
        self._running = _Running(settings)

    def stop(self) -> Profile | None:
        """The profile that runs, ended and written, else the latest one; None if there never was one."""
        if self._running is not None:
            self._finish(self._running)
        return self._latest

    def step(self, batch: StepBatch) -> AbstractContextManager[None]:
        """Around the device work of one step."""
        running = self._running
        if running is None or (running.torch_profile is None and not self._begin(running)):
            return nullcontext()
        return self._step(running, batch)

    def _begin(self, running: _Running) -> bool:
        """A profiler that fails is no failure of the step."""
        # Kineto would write on standard error when it begins and ends.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        running.torch_profile = profile(activities=self._activities)
        try:
            running.torch_profile.start()
        except RuntimeError as error:
            self._running = None
            self._tell(Profile(None, 0, f"steps cannot be profiled: {error}"))
            return False
        return True

    @contextmanager
    def _step(self, running: _Running, batch: StepBatch) -> Iterator[None]:
        num_tokens = sum(row.num_tokens for row in batch.rows)
        label = f"{STEP_LABEL} {running.num_steps}: {len(batch.rows)} rows, {num_tokens} tokens"
        try:
            with record_function(label):
                yield
        finally:
            running.num_steps += 1
            if running.num_steps == running.settings.num_steps:
                self._finish(running)

    def _finish(self, running: _Running) -> None:
        self._running = None
        if running.torch_profile is None:
            self._tell(Profile(None, 0))
        else:
            self._tell(self._written(running.torch_profile, running.settings.directory, running.num_steps))

    def _tell(self, result: Profile) -> None:
        self._latest = result
        if result.error is not None:
            _log.warning("%s", result.error)
        else:
            _log.info("profile of %d steps%s", result.steps, f" written to {result.path}" if result.path else "")

    def _written(self, torch_profile: profile, directory: Path, num_steps: int) -> Profile:
        """A name stands for a whole file: it is given once all is written."""
        name = f"octavo-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(self._numbers)}.pt.trace.json"
        path, partial = directory / name, directory / f".{name}.partial"
        try:
            torch_profile.stop()
            torch_profile.export_chrome_trace(str(partial))
            os.replace(partial, path)  # torch says nothing of a file that it could not write
        except (OSError, RuntimeError) as error:
            because = error.strerror if isinstance(error, OSError) else error
            return Profile(None, num_steps, f"the profile could not be written to {str(path)!r} ({because})")
        return Profile(str(path), num_steps)
