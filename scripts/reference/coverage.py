"""What of the APIs is honoured, taken without effect, or refused, as the request models themselves have it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from octavo.engine.serving import ServingEngine
from octavo.server.app import create_app
from octavo.server.errors import HttpError
from octavo.server.protocol.chat import UNSUPPORTED_IN_CHAT, ChatRequest
from octavo.server.protocol.completions import UNSUPPORTED_IN_COMPLETIONS, CompletionRequest
from octavo.server.protocol.embeddings import EmbeddingRequest
from octavo.server.protocol.fields import RequestModel
from octavo.server.protocol.message_requests import UNSUPPORTED_IN_MESSAGES, CountTokensRequest, MessageRequest
from octavo.server.protocol.parsing import Unsupported, parse
from octavo.server.protocol.responses import UNSUPPORTED_IN_RESPONSES, ResponseRequest
from octavo.server.protocol.sampling import OTHER_SERVERS_FIELDS
from octavo.server.protocol.tokens import DetokenizeRequest, TokenizeChat, TokenizeText
from octavo.server.settings import ServerSettings
from scripts.reference.field_values import FieldValues
from scripts.reference.markdown import code, codes, page, table

HONOURED, WITHOUT_EFFECT, SOME_VALUES, REFUSED = "honoured", "taken, without effect", "some values only", "refused"


@dataclass(frozen=True)
class Endpoint:
    """A route's request. `own` fields are none of the client library's; `without_effect` are honest about nothing
    following from them; `narrow` says of fields with types of their own which of the library's values these leave out.
    """

    route: str
    model: type[RequestModel]
    whose: str = "OpenAI"
    unsupported: Mapping[str, Unsupported] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    without_effect: frozenset[str] = frozenset()
    narrow: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(field, values, status, remark) of every field, in the order of the model, then those it does not declare."""
        values = FieldValues(self.model)
        rows = [self._row(name, values.of(name)) for name in self.model.model_fields]
        return rows + [self._row(name, self._harmless(name)) for name in self._undeclared]

    @property
    def _undeclared(self) -> list[str]:
        return [name for name in self.unsupported if name not in self.model.model_fields]

    def _row(self, name: str, values: str) -> tuple[str, str, str, str]:
        own = [f"not {self.whose}'s"] if name in self.own else []
        refusal = self.narrow.get(name) or self._refusal(name)
        if refusal is None:
            status = WITHOUT_EFFECT if name in self.without_effect else HONOURED if values else REFUSED
            return name, values, status, "; ".join(own)
        return name, values, SOME_VALUES if values else REFUSED, "; ".join([*own, refusal])

    def _refusal(self, name: str) -> str | None:
        """What the server says of a value that it does not take; None if it says so of none."""
        if name not in self.unsupported:
            return None
        try:
            parse(self.model, {name: object()}, self.unsupported)
        except HttpError as error:
            return str(error).partition(" is not supported: ")[2]
        raise AssertionError(name)

    def _harmless(self, name: str) -> str:
        """Of what could ask for nothing, what the server takes."""
        candidates: tuple[Any, ...] = (
            False,
            0,
            1,
            [],
            ["text"],
            "none",
            "auto",
            "default",
            "medium",
            "disabled",
            "standard",
            "in_memory",
        )
        return ", ".join(code(json.dumps(each).strip('"')) for each in candidates if self._takes(name, each))

    def _takes(self, name: str, value: Any) -> bool:
        try:
            self.unsupported[name].check(name, value)
        except HttpError:
            return False
        return True


_SAMPLING_OWN = frozenset(
    ("cache_salt", "choice", "grammar", "ignore_eos", "min_p", "priority", "regex", "repetition_penalty")
) | {"skip_special_tokens", "stop_token_ids", "top_k", *OTHER_SERVERS_FIELDS}
_TEMPLATE = frozenset(("chat_template_kwargs",))
_LABELS = frozenset(("user", "metadata"))
_CACHE_LABELS = frozenset(("safety_identifier", "prompt_cache_key"))
_NARROW_STREAM = {"stream_options": "of its fields, `include_obfuscation` may be false"}
_NARROW_MESSAGES = {
    "thinking": "`enabled` is refused: a budget cannot be kept",
    "tools": "Anthropic's own tools are refused",
    "output_config": "`effort` is refused",
}
ENDPOINTS = (
    Endpoint(
        "POST /v1/chat/completions",
        ChatRequest,
        unsupported=UNSUPPORTED_IN_CHAT,
        own=_SAMPLING_OWN | _TEMPLATE | {"add_generation_prompt", "continue_final_message"},
        without_effect=_LABELS | _CACHE_LABELS,
        narrow=_NARROW_STREAM,
    ),
    Endpoint(
        "POST /v1/completions",
        CompletionRequest,
        unsupported=UNSUPPORTED_IN_COMPLETIONS,
        own=_SAMPLING_OWN | {"response_format", "metadata", "service_tier", "store"},
        without_effect=_LABELS,
        narrow=_NARROW_STREAM,
    ),
    Endpoint(
        "POST /v1/embeddings",
        EmbeddingRequest,
        own=frozenset(("pooling", "priority", "cache_salt")),
        without_effect=frozenset(("user",)),
    ),
    Endpoint(
        "POST /v1/responses",
        ResponseRequest,
        unsupported=UNSUPPORTED_IN_RESPONSES,
        own=_TEMPLATE | {"top_k", "min_p", "seed", "stop", "priority", "cache_salt"},
        without_effect=_CACHE_LABELS | {"user"},
        narrow={
            "reasoning": "`effort` and `summary` are refused: thinking is switched by `chat_template_kwargs`",
            "stream_options": "`include_obfuscation` may be false",
            "text": "`verbosity` may be `medium`",
            "tools": "built-in tools are refused",
        },
    ),
    Endpoint(
        "POST /v1/messages",
        MessageRequest,
        "Anthropic",
        UNSUPPORTED_IN_MESSAGES,
        own=_TEMPLATE | {"min_p", "seed", "priority", "cache_salt"},
        without_effect=frozenset(("metadata", "service_tier", "cache_control")),
        narrow=_NARROW_MESSAGES,
    ),
    Endpoint(
        "POST /v1/messages/count_tokens",
        CountTokensRequest,
        "Anthropic",
        UNSUPPORTED_IN_MESSAGES,
        own=_TEMPLATE,
        without_effect=frozenset(("cache_control",)),
        narrow=_NARROW_MESSAGES,
    ),
    Endpoint("POST /tokenize, of a text", TokenizeText, narrow={"messages": "of a conversation, see below"}),
    Endpoint("POST /tokenize, of a conversation", TokenizeChat, narrow={"prompt": "of a text, see above"}),
    Endpoint("POST /detokenize", DetokenizeRequest),
)
# Of the two APIs, what this server has no route for. Whoever asks is answered 404, code `not_found`.
ABSENT = {
    "OpenAI": (
        *("/v1/assistants", "/v1/threads", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/batches", "/v1/files"),
        *("/v1/chat/completions/{id}", "/v1/conversations", "/v1/fine_tuning/jobs", "/v1/images/generations"),
        *("/v1/moderations", "/v1/realtime", "/v1/responses/{id}/cancel", "/v1/responses/{id}/input_items"),
        *("/v1/uploads", "/v1/vector_stores"),
    ),
    "Anthropic": ("/v1/complete", "/v1/messages/batches", "/v1/organizations"),
}


def coverage_page() -> str:
    parts = [
        "A field is *honoured*; *taken, without effect*, because nothing follows from it; taken with *some values "
        "only*, those that ask for nothing; or *refused*: 400 with its name as `param`. A field that is not here is "
        "refused as unknown. A null is the same as an absent field. What honoured fields may hold is in "
        "[the generation API](../api.md), [tools](../tools.md), [structured output](../structured-output.md) and "
        "[Responses and Messages](../responses-and-messages.md), and with every bound in `/openapi.json` of a running "
        "server.",
        "## Routes",
        table(("Route", "What it does"), routes()),
        "Not here, and answered 404:",
        table(("API", "Routes"), ((api, codes(paths)) for api, paths in ABSENT.items())),
        "Files of requests are answered by [`octavo batch`](../batch.md) in place of `/v1/batches`.",
    ]
    for endpoint in ENDPOINTS:
        rows = ((code(name), status, values, _sentence(remark)) for name, values, status, remark in endpoint.rows())
        parts += [f"## {endpoint.route}", table(("Field", "", "Values", ""), rows)]
    return page("API coverage", *parts)


def routes() -> Iterable[tuple[str, str]]:
    """(method and path, the first line of its description) of all that /openapi.json describes."""
    loading = SimpleNamespace(status=SimpleNamespace(state="loading", reason=""), stats=None)
    document = create_app(cast(ServingEngine, loading), ServerSettings()).openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield code(f"{method.upper()} {path}"), operation["description"].split("\n")[0]
    yield code("GET /openapi.json"), "The description of all this, with the bounds of the model that is loaded."


def _sentence(remark: str) -> str:
    return remark[:1].upper() + remark[1:] if not remark.startswith("`") else remark
