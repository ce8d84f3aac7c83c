"""A server of event streams that a test scripts: each connection gets the next answer, and the last one for good."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def picture(at_s: float = 1.0, instance: str = "a", **machine: Any) -> dict[str, Any]:
    """What /v1/internal/events sends; keywords replace fields of the machine."""
    rates = {"first_token_s": None, "inter_token_s": None, "step_s": None}
    return {
        "server": {"version": "9.9", "instance": instance, "uptime_s": 75.0},
        "engine": {"state": "ready", "reason": "", "busy": False},
        "model": {
            "name": "tiny",
            "family": "llama",
            "storage": "paged",
            "dtype": "bfloat16",
            "kv_dtype": "f16",
            "weights": "full",
            "max_context": 512,
            "chat_template": True,
        },
        "machine": {
            "at_s": at_s,
            "rates": rates,
            "steps": 10,
            "generated_tokens": 100,
            "waiting": 4,
            "running": 2,
            "requests": [request()],
            "requests_left_out": 0,
            "groups": [group()],
            "cache": {
                "prefix_cache": {"hits": 3, "misses": 1, "hit_tokens": 48, "evictions": 2, "rejects": 0},
                "prompt_tokens": 200,
                "cached_prompt_tokens": 48,
                "preemptions": 5,
            },
            "routes": [{"route": "gather", "reason": "no compiled kernel", "count": 7}],
            "memory": {"weight_bytes": 1 << 20, "kv_bytes": 2 << 30},
            **machine,
        },
    }


def group(**counts: int) -> dict[str, Any]:
    counts = {"free": 5, "live": 2, "shared": 1, "cached": 1, "pinned": 0, **counts}
    return {
        "group": 0,
        "kind": "full",
        "layers": 2,
        "window": None,
        "blocks": sum(counts.values()),
        "block_size": 16,
        "counts": counts,
    }


def request(**fields: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "stage": "running",
        "prompt_tokens": 21,
        "computed_tokens": 21,
        "cached_tokens": 16,
        "generated_tokens": 4,
        "max_generated_tokens": 8,
        "age_s": 0.5,
        **fields,
    }


@dataclass
class Answer:
    """`events` are sent one after the other, then the connection ends, or with `stays` when the client goes."""

    events: Sequence[dict[str, Any]] = ()
    status: int = 200
    body: str = ""
    stays: bool = False


@dataclass
class PictureServer:
    url: str = ""
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def serving(*answers: Answer, port: int = 0) -> Iterator[PictureServer]:
    served = PictureServer()
    left = list(answers)
    ending = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.keys.append(self.headers.get("authorization"))
            answer = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(answer.status if self.path == "/v1/internal/events" else 418)
            self.end_headers()
            self.wfile.write(answer.body.encode())
            for each in answer.events:
                self.wfile.write(f"event: machine\ndata: {json.dumps(each)}\n\n".encode())
            self.wfile.flush()
            if answer.stays:
                ending.wait(30)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        ending.set()
        server.shutdown()
        server.server_close()
        thread.join()
