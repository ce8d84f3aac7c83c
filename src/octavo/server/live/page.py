"""The live page and its parts, read once from the package. Holds no data, so it takes no key."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.server.errors import HttpError
from octavo.server.state import state_of

router = APIRouter(include_in_schema=False)
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # to be asked for again each time, and answered 304
}
_BASE = '<base href="/">'


@dataclass(frozen=True, slots=True)
class _Part:
    content: bytes
    kind: str

    @property
    def tag(self) -> str:
        return f'"{sha256(self.content).hexdigest()[:24]}"'


@cache
def _parts() -> dict[str, _Part]:
    """By file name."""
    found = {}
    for file in (files("octavo.server") / "page").iterdir():
        kind = _KINDS.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            found[file.name] = _Part(file.read_bytes(), kind)
    return found


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """The page itself, whose links are relative to where a proxy shows the server."""
    settings = state_of(request).settings
    _check_shown(request)
    whole = _parts()["index.html"]
    base = _BASE.replace("/", html.escape(f"{settings.root_path}/"))
    return _answer(request, _Part(whole.content.replace(_BASE.encode(), base.encode()), whole.kind))


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def part(request: Request, name: str) -> Response:
    """A script, a style sheet or a picture."""
    _check_shown(request)
    found = _parts().get(name)
    if found is None or name == "index.html":
        raise HttpError(404, f"the page has no part {name!r:.80}", code="not_found")
    return _answer(request, found)


def _check_shown(request: Request) -> None:
    if not state_of(request).settings.page:
        raise HttpError(404, "this server was started with --no-page; /openapi.json lists its routes", code="not_found")


def _answer(request: Request, part: _Part) -> Response:
    headers = {**_HEADERS, "etag": part.tag}
    if part.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(part.content, media_type=part.kind, headers=headers)
