"""Where `octavo top` gets its pictures: a server's event stream. Says in one line why there are none; tries once."""

from __future__ import annotations

import json
import ssl
from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx

from octavo.errors import InvalidRequest, OctavoError, shown

EVENTS = "/v1/internal/events"
CONNECT_S = 5.0
SILENCE_S = 15.0  # after which a server that sends nothing is taken for gone


class ServerGone(OctavoError):
    """The server cannot be reached, or has gone away: it may come back."""

    exit_status = 2


class PictureSource:
    """The pictures of the server at `url`, as JSON objects."""

    def __init__(self, url: str, key: str | None) -> None:
        """Raises `InvalidRequest` for what is no URL."""
        self.url = _checked(url)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            verify=ssl.create_default_context(),
            trust_env=False,  # a proxy would hold the stream back
        )

    def close(self) -> None:
        self._client.close()

    def pictures(self) -> Generator[dict[str, Any]]:
        """Until the connection ends, which raises `ServerGone`. Raises `InvalidRequest` if the server refuses."""
        try:
            with self._client.stream("GET", self.url + EVENTS) as response:
                if response.status_code != 200:
                    response.read()
                    raise self._refusal(response)
                yield from _events(response.iter_lines())
        except httpx.TimeoutException as error:
            raise ServerGone(
                f"{self.url} does not answer; start a server with `octavo serve`, or give --url"
            ) from error
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise ServerGone(
                f"{self.url} cannot be reached ({_cause(error)}); start a server with `octavo serve`, or give --url"
            ) from error
        raise ServerGone(f"the server at {self.url} has ended")

    def _refusal(self, response: httpx.Response) -> OctavoError:
        status = response.status_code
        said = _message(response)
        if status == 401:
            return InvalidRequest(f"{self.url}: {said or 'a key is needed'}: give it with --api-key or --api-key-file")
        if status in (502, 503, 504):  # a proxy's, while the server behind it starts
            return ServerGone(f"{self.url} answers {status}; is its server running?")
        if status == 404:
            return InvalidRequest(f"{self.url} has no {EVENTS}; give --url the address that `octavo serve` logs")
        return InvalidRequest(f"{self.url} answers {status}{': ' + said if said else ''}")


def _checked(url: str) -> str:
    """Without a scheme it is http, as in 127.0.0.1:8000."""
    address = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise InvalidRequest(f"--url is {shown(url)}; give a server's address, such as http://127.0.0.1:8000")
    return address.rstrip("/").removesuffix("/v1")


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The data of server-sent events named `machine`."""
    for line in lines:
        if line.startswith("data: "):
            try:
                found = json.loads(line[len("data: ") :])
            except ValueError as error:
                raise InvalidRequest("the server's events are no JSON; is this an Octavo server?") from error
            yield found


def _message(response: httpx.Response) -> str:
    """What a server of ours says in an error; empty for another's."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def _cause(error: BaseException) -> str:
    """In few words. httpx keeps what happened in the exceptions that it was raised from."""
    deepest = error
    while (deeper := deepest.__cause__ or deepest.__context__) is not None:
        deepest = deeper
    if isinstance(deepest, OSError) and deepest.strerror:
        return deepest.strerror.lower()
    return str(error) or type(error).__name__
