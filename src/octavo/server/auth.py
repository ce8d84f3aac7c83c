"""Who may use the server: the ring of API keys, and the middleware that asks for one."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import HttpError, error_response
from octavo.server.paths import is_messages_path, route_path

# For probes, which carry no key, and for the live page, which asks for one: nothing of the model or its users is there.
OPEN_PATHS = ("/health", "/ready", "/")
OPEN_PREFIX = "/page/"


class KeyRing:
    """The keys that open the server, kept as digests."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [sha256(key.encode("utf-8", "surrogateescape")).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def opens(self, key: bytes) -> bool:
        """Takes as long for any key of the same length: every digest is compared, to its end."""
        digest = sha256(key).digest()
        found = 0
        for each in self._digests:
            found |= hmac.compare_digest(each, digest)
        return bool(found)


class Authentication:
    """ASGI middleware: without `Authorization: Bearer KEY` everything but the open paths is 401.

    The scheme is read in any case, with one or more spaces after it, as RFC 9110 has it; two Authorization headers
    are refused. On the routes of Anthropic's API `x-api-key: KEY` does as well, where there is no Authorization.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or _is_open(route_path(scope)):
            await self._app(scope, receive, send)
            return
        key = _presented(scope)
        if key is not None and self._keys.opens(key):
            await self._app(scope, receive, send)
            return
        await error_response(_unauthorized(key))(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def _presented(scope: Scope) -> bytes | None:
    """The key, if there is one: the bytes after the scheme. Anthropic's clients have a header of their own."""
    values = _headers(scope, b"authorization")
    if not values and is_messages_path(scope):
        own = [value.strip(b" \t") for value in _headers(scope, b"x-api-key")]
        return own[0] if len(own) == 1 and own[0] else None
    if len(values) != 1:
        return None
    scheme, space, key = values[0].strip(b" \t").partition(b" ")  # the parser leaves tabs at a value's end
    key = key.lstrip(b" ")
    return key if scheme.lower() == b"bearer" and space and key else None


def _headers(scope: Scope, wanted: bytes) -> list[bytes]:
    return [bytes(value) for name, value in scope["headers"] if name == wanted]


def _unauthorized(key: bytes | None) -> HttpError:
    what = "this server needs an API key" if key is None else "the API key is not one of this server's"
    return HttpError(
        401,
        f"{what}; send the header `Authorization: Bearer KEY`",
        type="authentication_error",
        code="missing_api_key" if key is None else "invalid_api_key",
        headers={"www-authenticate": 'Bearer realm="octavo"'},
    )
