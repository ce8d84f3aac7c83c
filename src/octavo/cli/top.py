"""`octavo top`: a server's machine at work, live in the terminal. Asks nothing of a server but its event stream."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from octavo.cli.options import list_option, option, texts
from octavo.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.cli.top_frame import Frame
    from octavo.cli.top_picture import Picture, Trend
    from octavo.cli.top_source import PictureSource

RETRY_S = 1.0
PLAIN_WIDTH = 120  # of frames that no terminal shows
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 3600.0

Url = Annotated[str, option("--url", help="The server's address.")]
ApiKey = Annotated[list[str] | None, list_option("--api-key", help="Key for the server (of several, the first).")]
ApiKeyFile = Annotated[Path | None, option("--api-key-file", help="File whose first line is the key for the server.")]
Interval = Annotated[float, option("--interval", help="Least seconds between two frames.")]
Once = Annotated[bool, option("--once", help="Print one frame, as plain text, and end.")]
AsJson = Annotated[bool, option("--json", help="Print what the server sends, one JSON object a line.")]

Show = Callable[["Frame"], None]


def top(
    *,
    url: Url = "http://127.0.0.1:8000",
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    interval: Interval = 1.0,
    once: Once = False,
    as_json: AsJson = False,
) -> None:
    """Watch a server: requests, speed, K/V blocks, prefix hits, routes, memory. Ctrl-C ends it."""
    if not MIN_INTERVAL_S <= interval <= MAX_INTERVAL_S:
        raise InvalidRequest(
            f"--interval is {interval:g} seconds; it must be from {MIN_INTERVAL_S} to {MAX_INTERVAL_S:g}"
        )
    from octavo.cli.top_source import PictureSource
    from octavo.server.key_file import read_key_file

    keys = texts(api_key, "--api-key") + (read_key_file(api_key_file) if api_key_file else ())
    with closing(PictureSource(url, next(iter(keys), None))) as source:
        try:
            if once:
                _print_once(source, as_json)
            elif as_json:
                _print_all(source, interval)
            else:
                _watch(source, interval)
        except KeyboardInterrupt:  # how one leaves it
            return


def _print_once(source: PictureSource, as_json: bool) -> None:
    """The first picture that has rates, or that has no machine to tell rates of."""
    from octavo.cli.top_frame import Frame
    from octavo.cli.top_picture import History, Trend

    history = History()
    with closing(source.pictures()) as pictures:
        for found in pictures:
            picture = _read(found)
            trend = history.add(picture)
            if picture.machine is None or trend != Trend():
                break
    if as_json:
        print(json.dumps(found))
        return
    with _plain() as show:
        show(Frame(source.url, picture, trend))


def _print_all(source: PictureSource, interval: float) -> None:
    due = 0.0
    for found in _for_good(source, lambda error: print(f"octavo: {error}; trying again", file=sys.stderr)):
        if time.monotonic() >= due:
            due = time.monotonic() + interval
            print(json.dumps(found), flush=True)


def _watch(source: PictureSource, interval: float) -> None:
    with _terminal() if sys.stdout.isatty() else _plain() as show:
        view = _View(source.url, show, interval)
        for found in _for_good(source, view.on_lost):
            view.on_picture(found)


class _View:
    """What is on the screen, and since when."""

    def __init__(self, url: str, show: Show, interval: float) -> None:
        from octavo.cli.top_picture import History

        self._url = url
        self._show = show
        self._interval = interval
        self._history = History()
        self._latest: Picture | None = None
        self._notice = ""
        self._due = 0.0

    def on_picture(self, found: dict[str, Any]) -> None:
        """The next one from the server; shown if it is time."""
        picture = _read(found)
        trend = self._history.add(picture)
        if self._latest is not None and picture.server.instance != self._latest.server.instance:
            self._notice = f"the server was started again at {time.strftime('%H:%M:%S')}"
        self._latest = picture
        if time.monotonic() >= self._due:
            self._draw(picture, trend, self._notice)
            self._due = time.monotonic() + self._interval

    def on_lost(self, error: str) -> None:
        """The connection has ended: what was last seen stays."""
        from octavo.cli.top_picture import Trend

        if self._latest is not None:
            self._draw(self._latest, Trend(), f"{error}; trying again")
        self._due = 0.0

    def _draw(self, picture: Picture, trend: Trend, notice: str) -> None:
        from octavo.cli.top_frame import Frame

        self._show(Frame(self._url, picture, trend, notice))


def _for_good(source: PictureSource, on_lost: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Pictures, also of a server that has gone and come back. Raises `ServerGone` if there never was one."""
    from octavo.cli.top_source import ServerGone

    ever = connected = False
    while True:
        try:
            for found in source.pictures():
                ever = connected = True
                yield found
        except ServerGone as error:
            if not ever:
                raise
            if connected:
                on_lost(str(error))
        connected = False
        time.sleep(RETRY_S)


def _read(found: dict[str, Any]) -> Picture:
    from pydantic import ValidationError

    from octavo.cli.top_picture import Picture

    try:
        return Picture.model_validate(found)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InvalidRequest(
            f"the server's picture is not understood (at {where}); use the version of octavo that serves"
        ) from error


@contextmanager
def _terminal() -> Iterator[Show]:
    """The whole screen, which is as before at the end."""
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        yield lambda frame: live.update(frame, refresh=True)


@contextmanager
def _plain() -> Iterator[Show]:
    """One frame after the other, for files and pipes."""
    from rich.console import Console

    console = Console(width=PLAIN_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    yield lambda frame: console.print(frame)
