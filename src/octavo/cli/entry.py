"""Where the process of `octavo` begins: makes Ctrl-C quiet, then imports the command. Imports nothing else itself."""

from __future__ import annotations

import signal
from typing import NoReturn


def run() -> NoReturn:
    """Run the command that the process's arguments spell, and end the process.

    Until the command's own handling of interrupts is in place, Ctrl-C ends the process as it ends one that has no
    handler: at once, in silence. An interrupt that the parent chose to ignore stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from octavo.cli.main import run as run_octavo

    run_octavo()
