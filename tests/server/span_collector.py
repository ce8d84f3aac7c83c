"""A small OTLP collector: takes spans over HTTP, as protobuf, and keeps them."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

DEADLINE_S = 30.0


@dataclass(frozen=True)
class SpanFound:
    """One span; `begin` and `end` are nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    begin: int
    end: int
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """What has come, in the order of arrival. `status` is what it answers."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.url = ""
        self.spans: list[SpanFound] = []
        self.paths: list[str] = []

    def take(self, path: str, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.paths.append(path)
        for each in request.resource_spans:
            resource = _values(each.resource.attributes)
            self.spans += [_found(span, resource) for scope in each.scope_spans for span in scope.spans]

    def wait_for(self, what: Callable[[list[SpanFound]], list[SpanFound]]) -> list[SpanFound]:
        """`what` finds among the spans, once it finds any."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if found := what(list(self.spans)):
                return found
            time.sleep(0.02)
        raise AssertionError(f"the spans did not come; there are {self.spans}")

    def call(self, request_id: str) -> tuple[SpanFound, list[SpanFound]]:
        """The server span of the call with this id, waited for, and its children in the order they began."""
        (server,) = self.wait_for(
            lambda spans: [each for each in spans if each.attributes.get("octavo.request_id") == request_id]
        )
        inside = [each for each in self.spans if each.parent_id == server.span_id]
        return server, sorted(inside, key=lambda each: (each.begin, each.end))


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector(status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(collector.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _found(span: Any, resource: dict[str, Any]) -> SpanFound:
    return SpanFound(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        begin=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        failed=span.status.code == 2,
        attributes=_values(span.attributes),
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
