"""The JSON around the choices of an answer: ids, names, usage; whole, or as chunks of a stream. It knows no choice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from octavo.errors import OctavoError
from octavo.server.errors import http_error
from octavo.server.generation import CallUsage, Generation

_DONE = b"data: [DONE]\n\n"


class AnswerFrame:
    """What everything that one call is answered with has in common, written once.

    All text is ASCII, so that no reader can cut a character, or take a separator within a text for the end of a line.
    """

    def __init__(
        self,
        generation: Generation,
        model: str,
        fingerprint: str,
        *,
        whole_kind: str,
        chunk_kind: str,
        with_usage: bool,
    ) -> None:
        """`whole_kind` and `chunk_kind` are the `object` of either; `with_usage` ends a stream with its usage."""
        self._fields = {
            "id": generation.call_id,
            "object": whole_kind,
            "created": generation.created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._head = f"data: {_compact({**self._fields, 'object': chunk_kind})[:-1]},"
        self._tail = ',"usage":null}\n\n' if with_usage else "}\n\n"
        self._with_usage = with_usage

    def chunk(self, choice: str) -> str:
        """An event with one choice, whose JSON is given."""
        return f'{self._head}"choices":[{choice}]{self._tail}'

    def ending(self, usage: CallUsage) -> bytes:
        """What ends a stream: its usage, if it was asked to tell it, and the mark of the end."""
        if not self._with_usage:
            return _DONE
        return f'{self._head}"choices":[],"usage":{_compact(usage.as_json())}}}\n\n'.encode("ascii") + _DONE

    def failure(self, error: OctavoError) -> bytes:
        """The event that ends a stream which failed."""
        return b"data: " + json.dumps(http_error(error).body).encode("ascii") + b"\n\n"

    def whole(self, choices: Sequence[dict[str, Any]], usage: CallUsage) -> bytes:
        """A whole answer."""
        return _compact({**self._fields, "choices": choices, "usage": usage.as_json()}).encode("ascii")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
