"""What a step tells about a request. Plain data that crosses process boundaries; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from octavo.outputs import TextDelta, TokenLogprobs

if TYPE_CHECKING:
    from octavo.storage.snapshot import KVSnapshot

# Why the engine ended a request that its client did not end.
Fault = Literal[
    "fault", "invalid_grammar", "queue_timeout", "request_timeout", "slow_reader", "shut_down", "engine_died"
]


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Seconds from the first step to the first token, and from there to the last."""

    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What a step did for one request: a piece of text, and at its end the times, or the fault that ended it.

    `error` is one line for a person and comes with finish reason `error`; `fault` says which kind it is.
    `num_cached_tokens` of the prompt were not computed, for their K/V was there; it comes with the first event.
    `prompt_logprobs` come with the first event of a request that asked for them: one entry per prompt token, None for
    the first. `snapshot` comes with the last event of a request whose `HandOff` asked for one, unless a fault ended it.
    `embedding`, float32 values of length 1, comes with the only event of a request that has a `pooling`.
    """

    delta: TextDelta
    logprobs: TokenLogprobs | None = None
    times: RequestTimes | None = None
    error: str | None = None
    fault: Fault | None = None
    num_cached_tokens: int | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    snapshot: KVSnapshot | None = None
    embedding: tuple[float, ...] | None = None
