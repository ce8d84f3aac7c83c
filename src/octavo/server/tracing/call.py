"""What is noted of one call while it runs, for its spans. Knows nothing of OpenTelemetry, keeps no prompt or answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from octavo.engine.events import Fault, RequestTimes, StepEvent
from octavo.outputs import FinishReason
from octavo.request import Request


@dataclass(slots=True)
class ChoiceTrace:
    """One request to the engine. `times` are the engine's own, None until its first event."""

    request_id: str
    choice: int
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    times: RequestTimes | None = None
    finish_reason: FinishReason | None = None
    fault: Fault | None = None

    def take(self, event: StepEvent) -> None:
        """The next event."""
        self.output_tokens += len(event.delta.token_ids)
        self.cached_tokens = event.num_cached_tokens or self.cached_tokens
        self.times = event.times or self.times
        self.finish_reason = event.delta.finish_reason or self.finish_reason
        self.fault = event.fault or self.fault


@dataclass(slots=True)
class CallTrace:
    """One HTTP request. Times are seconds by `time.perf_counter`; `headers` are those that carry a caller's trace."""

    method: str
    request_id: str
    headers: dict[str, str]
    begun: float
    model: str | None = None
    choices: dict[str, ChoiceTrace] = field(default_factory=dict)
    ended: float = 0.0
    route: str = ""
    status: int = 0
    outcome: str = ""

    def begin(self, requests: Sequence[Request], model: str) -> None:
        """These go to the engine now, for `model`."""
        self.model = model
        for each in requests:
            self.choices[each.request_id] = ChoiceTrace(each.request_id, each.choice, len(each.prompt_token_ids))

    def note(self, events: Iterable[StepEvent]) -> None:
        """Events that have just come."""
        for event in events:
            self.choices[event.delta.request_id].take(event)

    def end(self, now: float, route: str, status: int, outcome: str, *, complete: bool) -> None:
        """It has been answered, or given up. A choice that the engine has not ended was ended here: by a stop that is
        looked for in the text if the answer is `complete`, else because its client left.
        """
        self.ended, self.route, self.status, self.outcome = now, route, status, outcome
        for choice in self.choices.values():
            if choice.finish_reason is None:
                choice.finish_reason = "stop" if complete and outcome == "ok" else "abort"


# The call that the current task serves; None where nothing is traced.
current_call: ContextVar[CallTrace | None] = ContextVar("current_call", default=None)
