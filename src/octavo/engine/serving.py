"""The engine as a server sees it: an asyncio protocol. Implemented by a child process, and by fakes in tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from octavo.engine.events import StepEvent
from octavo.engine.machine import MachineSnapshot
from octavo.engine.profile import Profile, ProfileSettings
from octavo.engine.stats import EngineStats
from octavo.request import Request
from octavo.tokenizer import Tokenizer

EngineState = Literal["loading", "ready", "draining", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server tells of the model it serves. `max_prompt_tokens` is the longest prompt that leaves room for one
    new token; `hidden_size` is how many values an embedding has; `storage`, `dtype`, `kv_dtype`,
    `weights` and `exact` are what was chosen. `instructions` are what products are computed with.
    """

    name: str
    family: str
    vocab_size: int
    max_context: int
    max_prompt_tokens: int
    storage: str
    dtype: str
    kv_dtype: str
    weights: str
    created: int  # seconds since 1970
    hidden_size: int
    instructions: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """`reason` is one line for a person: why the engine failed, or what it waits for."""

    state: EngineState
    reason: str = ""


class ServingEngine(Protocol):
    """Runs requests for one event loop. Every method is called on that loop's thread."""

    @property
    def status(self) -> EngineStatus: ...

    @property
    def info(self) -> ModelInfo:
        """Raises `EngineFault` before the model is loaded."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises `EngineFault` before the model is loaded."""
        ...

    @property
    def stats(self) -> EngineStats | None:
        """The latest snapshot, at most about 0.2 s old while there is work; None before the model is loaded."""
        ...

    async def start(self) -> None:
        """Load the model; returns when it is ready. Once only.

        Raises `LoadError`, `CapacityError`, `InvalidRequest`; `EngineFault` if the engine dies or is stopped meanwhile.
        """
        ...

    def run(self, requests: Sequence[Request]) -> AsyncGenerator[list[StepEvent]]:
        """Queue `requests`, all or none, and yield what happened to them since the last list, until all have ended.

        A reader that falls behind gets longer lists, in which one event may bring several tokens, and is ended with
        fault `slow_reader` past a bound. Closing the generator aborts those that still run within one step. Raises
        before the first list: `InvalidRequest`, `CapacityError` (can never fit), `QueueFull`, `NotReady` (loading,
        draining, failed), `EngineFault` (the engine could not take the request, for a fault of its own).
        """
        ...

    async def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes that no running request uses; returns the number of blocks freed.

        Raises `NotReady`, or `EngineFault` if the engine dies meanwhile.
        """
        ...

    async def inspect(self) -> MachineSnapshot:
        """The machine as it is after the step that runs now. Costs the engine a little: ask only for who looks.

        Raises as `reset_prefix_cache`.
        """
        ...

    async def start_profile(self, settings: ProfileSettings) -> None:
        """Profile the next steps. Raises `InvalidRequest` if that is being done, and as `reset_prefix_cache`."""
        ...

    async def stop_profile(self) -> Profile | None:
        """The profile that was started last, ended now unless it was before; None if none was started.

        Raises as `reset_prefix_cache`.
        """
        ...

    async def drain(self, deadline_s: float) -> None:
        """Take no new requests; return when all have ended, having ended those left after `deadline_s` seconds."""
        ...

    async def stop(self) -> None:
        """End what still runs and free the engine. Idempotent."""
        ...
