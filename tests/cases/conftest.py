"""Fixtures of the engine's and the command line's tests, for the replayed reports too."""

from tests.cli.conftest import octavo
from tests.engine.conftest import directory, load

__all__ = ["directory", "load", "octavo"]
