"""`python -m tests.soak`: the long soak of every scenario, one line of counts each. Exit status 1 if one fails."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.server.server_process import ended_by_sigterm
from tests.soak.scenario import SCENARIOS
from tests.soak.soak import Soak


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=5000, help="of each scenario")
    parser.add_argument("--questions", type=int, default=400, help="different ones among them")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for scenario in SCENARIOS:
        with ended_by_sigterm(), tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model"
            soak = Soak.prepared(scenario, path, arguments.questions, arguments.seed)
            print(soak.run(path, arguments.requests).line(), flush=True)


if __name__ == "__main__":
    main()
