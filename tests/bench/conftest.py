"""The command in this process, as the command's own tests run it."""

from tests.cli.conftest import octavo as octavo
