"""A `ServingEngine` whose engine runs elsewhere: in a child process, or in a thread. Imports no torch.

Owns the requests' outboxes, the queue's limit, the watchdog and the engine's state as a server shows it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.engine_link import EngineLink, ProcessLink, ThreadLink, log_level
from octavo.engine.events import Fault, StepEvent
from octavo.engine.machine import MachineSnapshot
from octavo.engine.outbox import Choice, Outbox
from octavo.engine.profile import Profile, ProfileSettings
from octavo.engine.queue_gate import QueueGate
from octavo.engine.serving import EngineState, EngineStatus, ModelInfo
from octavo.engine.stats import EngineStats
from octavo.engine.watchdog import Watchdog
from octavo.engine.wire import (
    Abort,
    Command,
    Fatal,
    Inspect,
    Inspected,
    Launch,
    Loaded,
    LoadFailed,
    Loading,
    Logged,
    Message,
    PrefixCacheReset,
    Profiled,
    Refused,
    ResetPrefixCache,
    StartProfile,
    Step,
    StopProfile,
    Submit,
)
from octavo.errors import EngineFault, InvalidRequest, NotReady, ShuttingDown, shown
from octavo.request import Request
from octavo.tokenizer import Tokenizer

LOAD_ENGINE = "octavo.engine.served_model:load_engine"
STOP_GRACE_S = 5.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """`max_queue` requests may wait beside those that run. A reader may leave `max_unread_tokens` of a request unread,
    and the oldest of them for `max_unread_s` seconds. A step of more than `watchdog_s` seconds is reported.
    """

    max_queue: int = 256
    max_unread_tokens: int = 8192
    max_unread_s: float = 60.0
    watchdog_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.max_queue <= 1 << 20:
            raise InvalidRequest(f"max queue is {shown(self.max_queue)}; it must be from 0 to {1 << 20}")
        for name in ("max_unread_tokens", "max_unread_s", "watchdog_s"):
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"{name.replace('_', ' ')} is {getattr(self, name)}; it must be above 0")


class RemoteEngine:
    """See ServingEngine. Used on one event loop's thread, and started once."""

    def __init__(
        self,
        link: EngineLink,
        factory: str,
        arguments: Sequence[Any],
        limits: ServingLimits | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`factory` is the import path `module:function` of what makes the engine, where it runs: called with a
        progress callback and `arguments`, it returns `EngineParts`. `on_progress` is told bytes loaded and in all.
        """
        self._link = link
        self._factory = factory
        self._arguments = tuple(arguments)
        self._limits = limits or ServingLimits()
        self._on_progress = on_progress
        self._state: EngineState = "loading"
        self._reason = "not started"
        self._loading: asyncio.Future[Loaded] | None = None
        self._info: ModelInfo | None = None
        self._tokenizer: Tokenizer | None = None
        self._stats: EngineStats | None = None
        self._gate = QueueGate(self._limits.max_queue, 1)
        self._watchdog = Watchdog(self._limits.watchdog_s)
        self._open: dict[int, Choice] = {}  # by handle: requests that have not ended
        self._submitted: dict[int, Outbox] = {}  # by first handle, while one of them is open
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count()

    # -- ServingEngine ---------------------------------------------------------------------------------------------

    @property
    def status(self) -> EngineStatus:
        reason = self._reason
        if self._state in ("ready", "draining") and self._watchdog.complaint:
            reason = self._watchdog.complaint
        return EngineStatus(self._state, reason)

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise EngineFault("the model is not loaded yet; wait for the engine to be ready")
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise EngineFault("the model is not loaded yet; wait for the engine to be ready")
        return self._tokenizer

    @property
    def stats(self) -> EngineStats | None:
        return self._stats

    async def start(self) -> None:
        """See ServingEngine. Raises `EngineFault` too, if the engine's process dies on the way."""
        assert self._loading is None, "an engine is started once"
        self._loading = asyncio.get_running_loop().create_future()
        self._reason = "loading the model"
        launch = Launch(self._factory, pickle.dumps(self._arguments), tuple(sys.path), log_level())
        try:
            await self._link.open(launch, self)
            loaded = await self._loading
            tokenizer: Tokenizer = await asyncio.to_thread(pickle.loads, loaded.tokenizer)
        except BaseException as error:
            if self._state == "loading":
                self._state, self._reason = "failed", str(error) or "loading was broken off"
            await self._link.close(0)
            raise
        if self._state != "loading":
            raise EngineFault(f"the engine did not become ready: {self._reason}")
        self._info, self._tokenizer, self._stats = loaded.info, tokenizer, loaded.stats
        self._gate = QueueGate(self._limits.max_queue, loaded.max_num_seqs)
        self._state, self._reason = "ready", ""

    async def run(self, requests: Sequence[Request]) -> AsyncGenerator[list[StepEvent]]:
        """See ServingEngine."""
        if not requests:
            return
        outbox = self._submit(tuple(requests))
        try:
            while not outbox.is_done:
                yield await outbox.take()
        finally:
            self._abort(outbox)

    async def reset_prefix_cache(self) -> int:
        """See ServingEngine. Raises `NotReady`, or `EngineFault` if the engine dies meanwhile."""
        num_blocks: int = await self._call(ResetPrefixCache)
        return num_blocks

    async def inspect(self) -> MachineSnapshot:
        """See ServingEngine."""
        snapshot: MachineSnapshot = await self._call(Inspect)
        return snapshot

    async def start_profile(self, settings: ProfileSettings) -> None:
        """See ServingEngine."""
        refusal: InvalidRequest | None = await self._call(lambda call: StartProfile(call, settings))
        if refusal is not None:
            raise refusal

    async def stop_profile(self) -> Profile | None:
        """See ServingEngine."""
        profile: Profile | None = await self._call(StopProfile)
        return profile

    async def drain(self, deadline_s: float) -> None:
        """See ServingEngine."""
        if self._state != "ready":
            return
        self._state, self._reason = "draining", "no new requests are taken"
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_s)
        except TimeoutError:
            self._end_all("shut_down", f"the server shut down before the request ended ({deadline_s:g} s were left)")

    async def stop(self) -> None:
        """See ServingEngine."""
        loading = self._state == "loading"
        if self._state != "failed":
            self._state, self._reason = "stopped", "the server has ended"
        self._end_all("shut_down", "the server shut down before the request ended")
        self._give_up("the engine was stopped")
        self._watchdog.stop()
        await self._link.close(0 if loading else STOP_GRACE_S)

    async def _call(self, command: Callable[[int], Command]) -> Any:
        self._check_ready("ready", "draining")
        call = next(self._call_ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call] = answer
        self._link.send(command(call))
        try:
            return await answer
        finally:
            del self._calls[call]

    # -- requests --------------------------------------------------------------------------------------------------

    def _submit(self, requests: tuple[Request, ...]) -> Outbox:
        self._check_ready("ready")
        first = self._gate.admit(len(requests))
        outbox = Outbox.of(requests, first, self._limits.max_unread_tokens, self._limits.max_unread_s)
        if not self._open:
            self._watchdog.watch()
        self._submitted[first] = outbox
        self._open.update((choice.handle, choice) for choice in outbox.choices)
        self._idle.clear()
        self._link.send(Submit(first, requests))
        return outbox

    def _check_ready(self, *states: EngineState) -> None:
        if self._state in states:
            return
        because = {
            "loading": "the model is still loading; try again soon",
            "draining": "the server is shutting down and takes no new requests; try again later",
            "stopped": "the server has shut down",
            "failed": f"the engine has failed ({self._reason}); the server has to be started again",
        }
        raise (ShuttingDown if self._state in ("draining", "stopped") else NotReady)(because[self._state])

    def _abort(self, outbox: Outbox) -> None:
        """Have the engine forget what its reader has left; nothing to do for what has ended."""
        left = tuple(choice.handle for choice in outbox.choices if choice.handle in self._open)
        if left:
            self._link.send(Abort(left))
            self._forget(left)

    def _forget(self, handles: Sequence[int]) -> None:
        for handle in handles:
            outbox = self._open.pop(handle).outbox
            if not any(choice.handle in self._open for choice in outbox.choices):
                del self._submitted[outbox.choices[0].handle]
        if not self._open:
            self._idle.set()
            self._watchdog.rest()

    def _end_all(self, fault: Fault, error: str) -> None:
        for outbox in list(self._submitted.values()):
            self._end(outbox, fault, error)

    def _end(self, outbox: Outbox, fault: Fault, error: str) -> None:
        handles = outbox.end(fault, error)
        self._link.send(Abort(tuple(handles)))
        self._forget(handles)

    # -- what the engine says --------------------------------------------------------------------------------------

    def on_message(self, message: Message) -> None:
        """See LinkListener."""
        if isinstance(message, Step):
            self._on_step(message)
        elif isinstance(message, Refused):
            self._on_refused(message)
        elif isinstance(message, Logged):
            logging.getLogger(message.logger).log(message.level, "%s", message.text)
        elif isinstance(message, PrefixCacheReset):
            self._answer(message.call, message.num_blocks)
        elif isinstance(message, Inspected):
            self._stats = message.snapshot.stats  # so that no route shows anything older than what was drawn
            self._answer(message.call, message.snapshot)
        elif isinstance(message, Profiled):
            self._answer(message.call, message.result)
        elif isinstance(message, Fatal):
            self._fail(message.cause)
        else:
            self._on_loading(message)

    def _answer(self, call: int, result: Any) -> None:
        answer = self._calls.get(call)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def on_lost(self, cause: str) -> None:
        """See LinkListener."""
        self._fail(cause)

    def _on_step(self, step: Step) -> None:
        now = self._watchdog.heard()
        ended: list[int] = []
        late: list[Outbox] = []
        for event in step.events:
            choice = self._open.get(event[0])
            if choice is None or choice.ended:
                continue  # its reader has left it meanwhile
            if not choice.outbox.put(choice, event, now):
                late.append(choice.outbox)
            if choice.ended:
                ended.append(choice.handle)
        self._gate.update(step, len(ended), now)
        if step.stats is not None:
            self._stats = step.stats
        if ended:
            self._forget(ended)
        for outbox in late:
            if outbox.num_open:
                self._end(outbox, "slow_reader", self._slow_reader())

    def _slow_reader(self) -> str:
        limits = self._limits
        return (
            f"the reader fell behind by more than {limits.max_unread_tokens} tokens or {limits.max_unread_s:g} s; "
            "read faster, or ask without streaming"
        )

    def _on_refused(self, message: Refused) -> None:
        self._watchdog.heard()
        outbox = self._submitted.get(message.first_handle)
        if outbox is not None:
            outbox.fail(message.error)
            self._forget([choice.handle for choice in outbox.choices])

    def _on_loading(self, message: Loading | Loaded | LoadFailed) -> None:
        if isinstance(message, Loading):
            self._reason = f"loading the model: {100 * message.done // max(1, message.total)}%"
            self._on_progress(message.done, message.total)
        elif self._loading is not None and not self._loading.done():
            if isinstance(message, Loaded):
                self._loading.set_result(message)
            else:
                self._loading.set_exception(message.error)

    def _fail(self, cause: str) -> None:
        """The engine is gone: say why to all who wait for it."""
        if self._state in ("failed", "stopped"):
            return
        if self._state != "loading":
            _LOG.error("%s", cause)
        self._state, self._reason = "failed", cause
        self._end_all("engine_died", cause)
        self._give_up(cause)
        self._watchdog.stop()

    def _give_up(self, cause: str) -> None:
        waiting = list(self._calls.values()) + ([] if self._loading is None else [self._loading])
        for answer in waiting:
            if not answer.done():
                answer.set_exception(EngineFault(cause))


class ProcessEngine(RemoteEngine):
    """An engine in a child process, which ends when this one does."""

    def __init__(
        self,
        factory: str,
        arguments: Sequence[Any],
        limits: ServingLimits | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._process = ProcessLink()
        super().__init__(self._process, factory, arguments, limits, on_progress)

    @property
    def pid(self) -> int | None:
        """The child's process id, dead or alive; None before there is one."""
        return self._process.pid

    @classmethod
    def for_model(
        cls,
        path: Path,
        config: EngineConfig,
        name: str,
        limits: ServingLimits | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> ProcessEngine:
        """Serves the model at `path` under `config`, known to clients as `name`."""
        return cls(LOAD_ENGINE, (path, config, name), limits, on_progress)


class ThreadEngine(RemoteEngine):
    """The same in a thread of this process."""

    def __init__(self, factory: str, arguments: Sequence[Any], limits: ServingLimits | None = None) -> None:
        super().__init__(ThreadLink(), factory, arguments, limits)
