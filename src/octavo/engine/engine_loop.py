"""The loop of an engine that serves: commands in, one message per step out. Owns the engine while it runs.

Knows neither sockets nor threads: a `Port` brings commands and takes messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.engine.events import StepEvent
from octavo.engine.fault_text import cause_of
from octavo.engine.machine import MachineSnapshot, MachineView
from octavo.engine.profile import Profile, ProfileSettings
from octavo.engine.step_meter import Measured, StepMeter
from octavo.engine.wire import (
    Abort,
    Command,
    Fatal,
    Inspect,
    Inspected,
    Message,
    PrefixCacheReset,
    Profiled,
    Refused,
    ResetPrefixCache,
    StartProfile,
    Step,
    Stop,
    StopProfile,
    Submit,
    WireEvent,
    encode,
)
from octavo.errors import EngineFault, InvalidRequest, OctavoError
from octavo.request import Request

STATS_INTERVAL_S = 0.15


class Port(Protocol):
    """The engine's side of a connection."""

    def receive(self, wait: bool) -> Sequence[Command]:
        """What has arrived, in order. With `wait` it blocks until there is something.

        Raises `EOFError` once the other side has gone.
        """
        ...

    def send(self, message: Message) -> None:
        """Never waits for a reader that is merely slow. Raises `EOFError` once the other side has gone."""
        ...


class SteppedCore(Measured, Protocol):
    """What the loop needs of an engine. `EngineCore` is one."""

    @property
    def has_work(self) -> bool: ...

    def add(self, request: Request) -> None:
        """Raises an `OctavoError` if the request cannot be served; then nothing was queued."""
        ...

    def abort(self, request_id: str) -> None:
        """Unknown ids are passed over."""
        ...

    def expire(self, now: float) -> list[StepEvent]:
        """End requests whose deadlines are over at `now`, by `time.perf_counter`."""
        ...

    def step(self) -> list[StepEvent]:
        """One step. A request that fails ends by an event; what this raises is the end of the engine."""
        ...

    def reset_prefix_cache(self) -> int:
        """The number of blocks freed."""
        ...

    def start_profile(self, settings: ProfileSettings) -> None:
        """Raises `InvalidRequest` if steps are being profiled already."""
        ...

    def stop_profile(self) -> Profile | None:
        """The latest profile, ended; None if there never was one."""
        ...

    def machine(self) -> MachineView:
        """What there is to see between two steps."""
        ...


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    handle: int
    num_prompt: int
    begun: bool = False  # an event was seen


class EngineLoop:
    """Runs one engine for one port until it is stopped, the other side goes, or the engine fails."""

    def __init__(
        self,
        core: SteppedCore,
        port: Port,
        stats_interval_s: float = STATS_INTERVAL_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._core = core
        self._port = port
        self._interval = stats_interval_s
        self._clock = clock
        self._meter = StepMeter()
        self._open: dict[str, _Open] = {}  # by request id
        self._ids: dict[int, str] = {}  # by handle
        self._num_received = 0
        self._told = (0, 0, 0)  # received, waiting, running, as of the latest message
        self._published = clock()

    def run(self) -> None:
        """Serve. Returns when it is told to stop or the other side is gone; whatever else is raised has been told."""
        try:
            while self._take_commands():
                if self._core.has_work:
                    self._step()
        except EOFError:
            return
        except BaseException as error:
            self._port.send(Fatal(f"the engine failed: {cause_of(error)}"))
            raise

    def _take_commands(self) -> bool:
        """Carry out what has arrived; wait for it while there is nothing to compute. False to stop."""
        commands = self._port.receive(wait=not self._core.has_work)
        for command in commands:
            if isinstance(command, Stop):
                return False
            self._carry_out(command)
        if commands and not self._core.has_work:
            self._tell([])
        return True

    def _carry_out(self, command: Submit | Abort | ResetPrefixCache | Inspect | StartProfile | StopProfile) -> None:
        if isinstance(command, Submit):
            self._submit(command)
        elif isinstance(command, Abort):
            for handle in command.handles:
                request_id = self._ids.pop(handle, None)
                if request_id is not None:
                    del self._open[request_id]
                    self._core.abort(request_id)
        elif isinstance(command, Inspect):
            self._port.send(Inspected(command.call, self._snapshot()))
        elif isinstance(command, StartProfile):
            self._port.send(Profiled(command.call, self._start_profile(command.settings)))
        elif isinstance(command, StopProfile):
            self._port.send(Profiled(command.call, self._core.stop_profile()))
        else:
            self._port.send(PrefixCacheReset(command.call, self._core.reset_prefix_cache()))

    def _start_profile(self, settings: ProfileSettings) -> InvalidRequest | None:
        try:
            self._core.start_profile(settings)
        except InvalidRequest as refusal:
            return refusal
        return None

    def _snapshot(self) -> MachineSnapshot:
        began = self._clock()
        view, stats = self._core.machine(), self._meter.stats(self._core)
        return MachineSnapshot(began, self._clock() - began, stats, view)

    def _submit(self, command: Submit) -> None:
        """Queue all requests, or none and say why."""
        self._num_received += len(command.requests)
        added: list[str] = []
        refusal: OctavoError | None = None
        for request in command.requests:
            try:
                self._core.add(request)
            except OctavoError as error:
                refusal = error
            except Exception as error:  # noqa: BLE001 - a request that nobody foresaw must not end all others
                refusal = EngineFault(f"request {request.request_id} could not be taken: {cause_of(error)}")
            if refusal is not None:
                break
            added.append(request.request_id)
        if refusal is not None:
            for request_id in added:
                self._core.abort(request_id)
            self._port.send(Refused(command.first_handle, refusal))
            return
        for handle, request in enumerate(command.requests, command.first_handle):
            self._ids[handle] = request.request_id
            self._open[request.request_id] = _Open(handle, len(request.prompt_token_ids))

    def _step(self) -> None:
        began = self._clock()
        events = self._core.expire(began)
        expired = len(events)
        if self._core.has_work:
            events += self._core.step()
            ended = sum(event.delta.finish_reason is not None for event in events[expired:])
            self._meter.step(self._clock() - began, self._core.num_running + ended)
        self._tell([self._note(event) for event in events])

    def _note(self, event: StepEvent) -> WireEvent:
        """Count an event, and give it the form it travels in."""
        delta, meter = event.delta, self._meter
        request = self._open[delta.request_id]
        meter.generated_tokens += len(delta.token_ids)
        if not request.begun and event.fault is None:
            request.begun = True
            meter.prompt_tokens += request.num_prompt
            meter.cached_prompt_tokens += event.num_cached_tokens or 0
        if delta.finish_reason is not None:
            del self._open[delta.request_id], self._ids[request.handle]
        return encode(request.handle, event)

    def _tell(self, events: list[WireEvent]) -> None:
        """One message, if there is anything to say: events, other numbers, or statistics that are due."""
        core, now = self._core, self._clock()
        idle = not core.has_work
        counts = (self._num_received, core.num_waiting, core.num_running)
        due = now - self._published >= self._interval
        if not events and counts == self._told and not due and not idle:
            return
        stats = None
        if due or idle:
            stats, self._published = self._meter.stats(core), now
        self._told = counts
        self._port.send(Step(events, *counts, stats))
