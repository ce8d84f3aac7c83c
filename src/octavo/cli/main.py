"""The `octavo` command: which commands there are. Imports nothing heavy; a command imports what it runs itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import octavo
from octavo.cli import batch, bench, chat, generate, inspect, parity, serve, store_commands, top
from octavo.cli.errors import one_line, run_command
from octavo.cli.streams import use_checked_streams

app = typer.Typer(
    name="octavo",
    help="Run language models at the terminal and as a server; the same engine is a Python library.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("batch")(batch.batch)
app.command("top")(top.top)
app.command("inspect")(inspect.inspect)
app.command("parity")(parity.parity)
app.add_typer(bench.app, name="bench")
app.command("pull")(store_commands.pull)
app.command("list")(store_commands.list_)
app.command("rm")(store_commands.rm)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"octavo {octavo.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that `arguments` (default: the process's own) spell, and end the process."""
    use_checked_streams()
    log = logging.getLogger("octavo")
    log.setLevel(logging.INFO)
    log.addHandler(PlainLines())
    run_command(lambda: invoke(sys.argv[1:] if arguments is None else arguments))


def invoke(arguments: Sequence[str]) -> None:
    """Parse and run, leaving every exception to the caller.

    Typer's own entry would turn some of them into boxes and exit codes of its own.
    """
    command = typer.main.get_command(app)
    with command.make_context("octavo", list(arguments)) as context:
        command.invoke(context)


class PlainLines(logging.Handler):
    """Shows what is logged as one plain line each on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None:
            line = one_line(record.getMessage())
            level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
            print(f"octavo: {level}{line}", file=sys.stderr, flush=True)
