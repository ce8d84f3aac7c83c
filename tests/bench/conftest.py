"""The command in this process, and a tiny model, as the command's own tests have them."""

from tests.cli.conftest import gguf as gguf
from tests.cli.conftest import loads_nothing as loads_nothing
from tests.cli.conftest import octavo as octavo
