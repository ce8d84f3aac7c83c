"""What went wrong, as an HTTP answer in OpenAI's shape: which exception or fault gives which status, type and code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from octavo.engine.events import Fault
from octavo.errors import CapacityError, InvalidGrammar, InvalidRequest, NotReady, OctavoError, QueueFull, ShuttingDown

# Codes that are outcomes of their own in the log, the metrics and traces; other errors are told by their status.
OUTCOME_CODES = frozenset(
    {"not_ready", "shutting_down", "queue_timeout", "request_timeout", "engine_died", "slow_reader"}
)
RETRY_AFTER_S = 5  # for what passes by itself, but not at once: loading, draining, a long queue
# The official client repeats every 5xx by itself unless told not to.
NO_RETRY = {"x-should-retry": "false"}


class HttpError(OctavoError):
    """An answer other than 200. `type`, `param` and `code` are OpenAI's; `headers` go out with it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002 - OpenAI's name
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object that tells it, also in the middle of a stream."""
        return error_body(str(self), type=self.type, param=self.param, code=self.code)


def error_body(
    message: str,
    *,
    type: str = "invalid_request_error",  # noqa: A002 - OpenAI's name
    param: str | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> HttpError:
    """400: the request is at fault; `param` is the field's name."""
    return HttpError(400, message, param=param, code=code)


def model_not_found(name: str) -> HttpError:
    """404: this server has no model called `name`."""
    message = f"the model {name!r:.200} does not exist here; GET /v1/models lists those that do"
    return HttpError(404, message, param="model", code="model_not_found")


def http_error(error: OctavoError) -> HttpError:
    """The answer to an exception of ours: its message is for users, so it is passed on."""
    message = str(error)
    if isinstance(error, HttpError):
        return error
    if isinstance(error, InvalidGrammar):
        return fault_error("invalid_grammar", message)
    if isinstance(error, InvalidRequest):
        return HttpError(400, message)
    if isinstance(error, QueueFull):
        wait = {"retry-after": str(error.retry_after_s)}
        return HttpError(429, message, type="rate_limit_error", code="queue_full", headers=wait)
    if isinstance(error, ShuttingDown):
        return fault_error("shut_down", message)
    if isinstance(error, NotReady):
        return _unavailable(message, "not_ready")
    if isinstance(error, CapacityError):  # it can never fit: to a client, its context is too long for this server
        return HttpError(400, message, code="context_length_exceeded")
    return HttpError(500, message, type="server_error", code="engine_fault")


def fault_error(fault: Fault, message: str) -> HttpError:
    """The answer to a request that the engine ended with `fault`; `message` is the event's `error`."""
    if fault == "invalid_grammar":
        return invalid(message, code=fault)
    if fault == "queue_timeout":
        return _unavailable(message, fault)
    if fault == "shut_down":
        return _unavailable(message, "shutting_down")
    if fault == "engine_died":
        return _unavailable(message, fault)
    if fault == "request_timeout":
        return HttpError(504, message, type="timeout_error", code=fault, headers=NO_RETRY)
    code = "engine_fault" if fault == "fault" else fault
    return HttpError(500, message, type="server_error", code=code, headers=NO_RETRY)


def outcome_of(error: OctavoError) -> str:
    """What became of a request that `error` ended, in a word: what its client was told, where that has a code."""
    answer = http_error(error)
    return answer.code if answer.code in OUTCOME_CODES else outcome_of_status(answer.status)


def outcome_of_status(status: int) -> str:
    """What became of a request that was answered with `status`."""
    if status in (429, 503):
        return "overloaded"
    if status >= 500:
        return "server_error"
    return "client_error" if status >= 400 else "ok"


def error_response(error: OctavoError) -> JSONResponse:
    """The whole answer to an exception of ours."""
    answer = http_error(error)
    return JSONResponse(answer.body, answer.status, answer.headers)


def _unavailable(message: str, code: str) -> HttpError:
    wait = {"retry-after": str(RETRY_AFTER_S)}
    return HttpError(503, message, type="service_unavailable_error", code=code, headers=wait)
