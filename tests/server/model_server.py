"""A server process over a real engine, with settings that have no flag: `python model_server.py MODEL CONFIG SETTINGS`.

MODEL is a path, the others are JSON objects of keywords.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from octavo.cli.errors import run_command
from octavo.config import EngineConfig
from octavo.engine.async_client import ProcessEngine
from octavo.server.listener import listen
from octavo.server.logs import configure_logs
from octavo.server.serve import serve
from octavo.server.settings import ServerSettings


def main() -> None:
    path = Path(sys.argv[1])
    config, settings = (json.loads(argument) for argument in sys.argv[2:])
    shaped = ServerSettings(port=0, **settings)
    with listen(shaped.host, shaped.port) as listener:
        configure_logs(shaped.log_level, shaped.log_format)
        engine = ProcessEngine.for_model(path, EngineConfig(**config), path.name)
        raise typer.Exit(serve(engine, shaped, listener))


if __name__ == "__main__":
    run_command(main)
