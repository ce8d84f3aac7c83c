"""What crosses between a web process and its engine: commands, messages, and how they are framed. Imports no torch.

Both ends are one program, so values are pickled. Owns no socket.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from octavo.engine.events import StepEvent
from octavo.engine.machine import MachineSnapshot
from octavo.engine.profile import Profile, ProfileSettings
from octavo.engine.serving import ModelInfo
from octavo.engine.stats import EngineStats
from octavo.errors import InvalidRequest, OctavoError
from octavo.request import Request

# Handle, text, token ids: what a decode step adds to a request, and no more. Everything else goes as a whole event.
PlainEvent = tuple[int, str, tuple[int, ...]]
WireEvent = PlainEvent | tuple[int, StepEvent]

# -- to the engine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """The first command. `factory` is `module:function`; `arguments` are its pickled positional arguments, after a
    progress callback. `sys_path` is where the sender finds modules, `log_level` what it wants to be told.
    """

    factory: str
    arguments: bytes
    sys_path: tuple[str, ...]
    log_level: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue all `requests` or none. They are known as `first_handle`, `first_handle + 1`, … from now on; handles of
    all submissions count on without a gap.
    """

    first_handle: int
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget requests; those that have ended are passed over."""

    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """`call` comes back with the answer."""

    call: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """`call` comes back with a snapshot of the machine as it is between two steps."""

    call: int


@dataclass(frozen=True, slots=True)
class StartProfile:
    """Profile the next steps. `call` comes back once it is known whether that can be."""

    call: int
    settings: ProfileSettings


@dataclass(frozen=True, slots=True)
class StopProfile:
    """`call` comes back with the profile that was started last, written by then."""

    call: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop, whatever still runs."""


Command = Submit | Abort | ResetPrefixCache | Inspect | StartProfile | StopProfile | Stop

# -- from the engine -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loading:
    """Bytes of weights read so far, and in all."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine takes requests and runs at most `max_num_seqs` at once. `tokenizer` is a pickled `Tokenizer`: making
    it again takes a while, which the receiver may want to spend elsewhere.
    """

    info: ModelInfo
    tokenizer: bytes
    max_num_seqs: int
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """What was raised for a model that cannot be served."""

    error: OctavoError


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the log, as Python's `logging` has it."""

    logger: str
    level: int
    text: str


class Step(NamedTuple):
    """What happened since the message before: one step, or commands that ended or queued something.

    `events` of a request are in order. `num_received` requests have arrived, ever, of which `num_waiting` wait and
    `num_running` run. `stats` comes now and then, and whenever the engine goes idle.
    """

    events: list[WireEvent]
    num_received: int
    num_waiting: int
    num_running: int
    stats: EngineStats | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """None of the requests submitted with `first_handle` was queued."""

    first_handle: int
    error: OctavoError


@dataclass(frozen=True, slots=True)
class PrefixCacheReset:
    call: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Inspected:
    call: int
    snapshot: MachineSnapshot


@dataclass(frozen=True, slots=True)
class Profiled:
    """`result` is why a start was refused, the profile of a stop, or None: started, or never asked for."""

    call: int
    result: Profile | InvalidRequest | None


@dataclass(frozen=True, slots=True)
class Fatal:
    """The engine has ended by itself; `cause` is one line for a person."""

    cause: str


Message = Loading | Loaded | LoadFailed | Logged | Step | Refused | PrefixCacheReset | Inspected | Profiled | Fatal

# -- framing ---------------------------------------------------------------------------------------------------------

_LENGTH = Struct("<Q")


def frame(value: object) -> bytes:
    """`value` as the bytes that `FrameReader` turns into it again."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Puts frames together from however the bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[Any]:
        """The values whose last byte is in `data`, in order."""
        buffer = self._buffer
        buffer += data
        values: list[Any] = []
        start, size = 0, len(buffer)
        with memoryview(buffer) as view:
            while size - start >= _LENGTH.size:
                stop = start + _LENGTH.size + _LENGTH.unpack_from(view, start)[0]
                if stop > size:
                    break
                with view[start + _LENGTH.size : stop] as body:
                    values.append(pickle.loads(body))
                start = stop
        del buffer[:start]
        return values


def encode(handle: int, event: StepEvent) -> WireEvent:
    """The smallest form that tells `event`, which is of the request known as `handle`."""
    delta = event.delta
    if (
        delta.finish_reason is None
        and event.logprobs is None
        and event.num_cached_tokens is None
        and event.prompt_logprobs is None
    ):
        return (handle, delta.text, delta.token_ids)
    return (handle, event)
