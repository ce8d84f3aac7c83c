"""Our server over random weights, for benchmarks: all of `octavo serve` but the reading of a checkpoint.

python -m octavo.bench.random_server DIR SETTINGS     serves a config.json's shape under an EngineConfig until SIGTERM
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.bench.random_model import RandomCheckpoint
from octavo.config import EngineConfig
from octavo.engine.async_client import ProcessEngine, ServingLimits
from octavo.engine.engine_parts import EngineParts
from octavo.engine.loaded_model import Progress, load_model, plan_checkpoint
from octavo.engine.served_model import ServedCore, engine_parts
from octavo.server import serve
from octavo.server.listener import listen
from octavo.server.logs import configure_logs
from octavo.server.settings import ServerSettings

RANDOM_ENGINE = "octavo.bench.random_server:random_engine"


def random_engine(progress: Progress, directory: Path, config: EngineConfig) -> EngineParts:
    """A factory for `ProcessEngine`. Every token of the vocabulary has a text, so that each one reaches the client."""
    checkpoint = RandomCheckpoint.open(directory)
    tokenizer = mock_tokenizer(checkpoint.config.vocab_size)
    loaded = load_model(plan_checkpoint(checkpoint, config), config, progress, tokenizer)
    return engine_parts(ServedCore(loaded, config), config, directory.name)


def main() -> None:
    """Be the server that the arguments ask for."""
    directory, config = Path(sys.argv[1]), EngineConfig(**json.loads(sys.argv[2]))
    with listen("127.0.0.1", 0) as listener:
        configure_logs("info", "text")
        settings = ServerSettings(port=0, log_level="info", exit_on_failure=True)
        sys.exit(serve.serve(ProcessEngine(RANDOM_ENGINE, (directory, config), ServingLimits()), settings, listener))


if __name__ == "__main__":
    main()
