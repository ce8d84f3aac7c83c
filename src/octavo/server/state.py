"""What every route shares: the engine, the settings, the model's names and the counters. One per application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter

from starlette.requests import HTTPConnection

from octavo.engine.events import StepEvent
from octavo.engine.serving import ModelInfo, ServingEngine
from octavo.errors import NotReady
from octavo.request import Request
from octavo.server.answer_forms import AnswerForms
from octavo.server.errors import model_not_found
from octavo.server.metrics import ServerMetrics
from octavo.server.responses.store import ResponseStore
from octavo.server.settings import ServerSettings
from octavo.server.tracing.call import current_call
from octavo.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServerState:
    """Found as `request.app.state.octavo`, or with `state_of(request)`."""

    engine: ServingEngine
    settings: ServerSettings
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    forms: AnswerForms = field(init=False)
    responses: ResponseStore = field(default_factory=ResponseStore)

    def __post_init__(self) -> None:
        object.__setattr__(self, "forms", AnswerForms(self.settings))

    def ready_model(self) -> tuple[ModelInfo, Tokenizer]:
        """What needs a loaded model. Raises `NotReady` with the reason while there is none."""
        status = self.engine.status
        if status.state in ("loading", "failed", "stopped"):
            if status.state == "loading":  # whose reason says so itself
                raise NotReady(f"the model is not ready ({status.reason or 'loading'}); try again soon")
            because = f": {status.reason}" if status.reason else ""
            raise NotReady(f"the model is not ready ({status.state}{because}); the server has to be started again")
        return self.engine.info, self.engine.tokenizer

    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model; the first is the one that answers carry. Raises `NotReady`."""
        names = self.settings.model_names or (self.ready_model()[0].name,)
        return tuple(dict.fromkeys(names))  # each once

    def check_model(self, name: str | None) -> str:
        """The name that an answer carries for a request that asked for `name`; None asks for any.

        Raises a 404 `HttpError` for another name. A name is compared, never opened.
        """
        names = self.model_names()
        if name is None:
            return names[0]
        if name not in names:
            raise model_not_found(name)
        return name

    async def run(self, requests: Sequence[Request]) -> AsyncGenerator[list[StepEvent]]:
        """`engine.run`, timed for the metrics: first token and every one after it. Close it to abort."""
        call = current_call.get()
        if call is not None:
            call.begin(requests, self.model_names()[0])
        begun = perf_counter()
        async with aclosing(self.engine.run(requests)) as batches:
            timer = self.metrics.token_timer(begun)
            async for events in batches:
                timer.note(events)
                if call is not None:
                    call.note(events)
                yield events


def state_of(connection: HTTPConnection) -> ServerState:
    """The state of the application that serves `connection`."""
    state: ServerState = connection.app.state.octavo
    return state
