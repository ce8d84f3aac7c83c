"""A server process over the fake engine: `python fake_server.py ENGINE SETTINGS`, two JSON objects of keywords.

`load_error` in ENGINE is the message of a `LoadError`. It ends as `octavo serve` does.
"""

from __future__ import annotations

import json
import sys

import typer
from fake_engine import FakeEngine

from octavo.cli.errors import run_command
from octavo.errors import LoadError
from octavo.server.listener import listen
from octavo.server.logs import configure_logs
from octavo.server.serve import serve
from octavo.server.settings import ServerSettings


def main() -> None:
    engine, settings = (json.loads(argument) for argument in sys.argv[1:])
    if "load_error" in engine:
        engine["load_error"] = LoadError(engine["load_error"])
    shaped = ServerSettings(port=0, **settings)
    with listen(shaped.host, shaped.port) as listener:
        configure_logs(shaped.log_level, shaped.log_format)
        raise typer.Exit(serve(FakeEngine(**engine), shaped, listener))


if __name__ == "__main__":
    run_command(main)
