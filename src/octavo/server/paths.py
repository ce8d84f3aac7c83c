"""Where a request goes, seen from the application's own root, when a proxy shows it under a prefix."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """ASGI middleware: the routes are found with `prefix` before them and without, as proxies do either."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["root_path"] = self._prefix
        if self._prefix and scope["path"] == self._prefix:  # as people write it, who look for the page
            scope["path"] = f"{self._prefix}/"
        await self._app(scope, receive, send)


def route_path(scope: Scope) -> str:
    """The path without the prefix."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def is_messages_path(scope: Scope) -> bool:
    """Whether it goes to Anthropic's API, which has errors and a header for keys of its own."""
    path = route_path(scope)
    return path == "/v1/messages" or path.startswith("/v1/messages/")
