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
    """When a request was queued, began its first step, got its first token and ended; None for what has not come about.

    Seconds by `time.perf_counter`, which all processes of a machine read alike.
    """

    queued: float
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None

    @property
    def prefill_s(self) -> float:
        """Seconds from the first step to the first token, or to an end that came before it."""
        until = self.ended if self.first_token is None else self.first_token
        return 0.0 if self.started is None or until is None else until - self.started

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the end."""
        return 0.0 if self.first_token is None or self.ended is None else self.ended - self.first_token


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What a step did for one request: a piece of text, and at its end the fault that ended it, if one did.

    `times` come with the first event and the last.
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
