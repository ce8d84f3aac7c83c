"""Turns ended calls into OpenTelemetry spans and sends them, from a thread of its own, to a collector.

A collector that is slow or gone costs a log line now and then; spans that find no room are dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

import octavo
from octavo.server.errors import OUTCOME_CODES
from octavo.server.tracing.call import CallTrace, ChoiceTrace

# How long the last spans may take to be sent when the server ends.
FLUSH_S = 3.0
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


_FAILURES = OUTCOME_CODES | {"server_error"}


@contextmanager
def span_writer(url: str) -> Iterator[SpanWriter]:
    """Spans go to `url` until the block ends, and those that wait then for up to `FLUSH_S` seconds more."""
    _share_log()
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    try:
        yield SpanWriter(provider)
    finally:
        # The exporter goes on trying for longer than a server that ends should wait.
        flushing = threading.Thread(target=provider.shutdown, name="octavo-last-spans", daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)


class SpanWriter:
    """Writes a call as one server span, with children queue, prefill and decode for each choice."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("octavo", octavo.__version__)
        self._propagator = TraceContextTextMapPropagator()

    def write(self, call: CallTrace) -> None:
        """`call` has ended. The monotonic clock is matched with the wall clock once, so that all spans are in order."""
        offset_ns = time.time_ns() - round(time.perf_counter() * 1e9)

        def at(seconds: float) -> int:
            return offset_ns + round(seconds * 1e9)

        span = self._tracer.start_span(
            f"{call.method} {call.route}",
            context=self._propagator.extract(call.headers),
            kind=SpanKind.SERVER,
            attributes=_call_attributes(call),
            start_time=at(call.begun),
        )
        if not span.is_recording():  # the caller's trace is not sampled
            return
        inside = trace.set_span_in_context(span)
        for choice in call.choices.values():
            for name, begun, ended, attributes in _phases(choice, call.ended):
                child = self._tracer.start_span(name, context=inside, attributes=attributes, start_time=at(begun))
                child.end(at(ended))
        fault = next((choice.fault for choice in call.choices.values() if choice.fault is not None), None)
        if fault is not None or call.outcome in _FAILURES or call.status >= 500:
            kind = call.outcome if call.outcome in OUTCOME_CODES else fault or str(call.status)
            span.set_attribute("error.type", kind)
            span.set_status(Status(StatusCode.ERROR))
        span.end(at(call.ended))


def _call_attributes(call: CallTrace) -> dict[str, AttributeValue]:
    choices = call.choices.values()
    found: dict[str, AttributeValue] = {
        "http.request.method": call.method,
        "http.route": call.route,
        "http.response.status_code": call.status,
        "octavo.outcome": call.outcome,
        "octavo.request_id": call.request_id,
    }
    if call.route in _OPERATIONS:
        found["gen_ai.operation.name"] = _OPERATIONS[call.route]
    if call.model is not None:
        found |= {
            "gen_ai.response.model": call.model,
            # The choices of a prompt share it.
            "gen_ai.usage.input_tokens": sum(each.prompt_tokens for each in choices if each.choice == 0),
            "gen_ai.usage.cache_read.input_tokens": sum(each.cached_tokens for each in choices if each.choice == 0),
            "gen_ai.usage.output_tokens": sum(each.output_tokens for each in choices),
            "gen_ai.response.finish_reasons": [each.finish_reason or "abort" for each in choices],
        }
    return found


_Phase = tuple[str, float, float, dict[str, AttributeValue]]


def _phases(choice: ChoiceTrace, call_ended: float) -> Iterator[_Phase]:
    """(name, begun, ended, attributes) of what is known to have happened; nothing if the engine has told nothing."""
    times = choice.times
    if times is None:
        return
    common: dict[str, AttributeValue] = {"octavo.choice_id": choice.request_id}
    ended = call_ended if times.ended is None else times.ended
    started, first_token = times.started, times.first_token
    yield "queue", times.queued, ended if started is None else started, common
    if started is None:
        return
    prompt = {"octavo.prompt_tokens": choice.prompt_tokens, "octavo.cached_tokens": choice.cached_tokens}
    yield "prefill", started, ended if first_token is None else first_token, common | prompt
    if first_token is not None and choice.output_tokens:
        answer = {
            "octavo.output_tokens": choice.output_tokens,
            "octavo.finish_reason": choice.finish_reason or "abort",
        }
        yield "decode", first_token, ended, common | answer


def _resource() -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, under our name and version where they say nothing."""
    found = Resource.create()
    ours = {}
    if str(found.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        ours[SERVICE_NAME] = "octavo"
    if SERVICE_VERSION not in found.attributes:
        ours[SERVICE_VERSION] = octavo.__version__
    return found.merge(Resource(ours))


def _share_log() -> None:
    """Have the exporter's warnings look like ours."""
    theirs = logging.getLogger("opentelemetry")
    theirs.handlers = list(logging.getLogger("octavo").handlers)
    theirs.propagate = False
