"""The tree of commands as a whole: every flag has a variable and a help text, and help is plain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from octavo.cli.main import app
from octavo.cli.options import environment_variable
from tests.cli.conftest import Run

COMMANDS = {
    "generate",
    "chat",
    "serve",
    "top",
    "batch",
    "inspect",
    "pull",
    "list",
    "rm",
    "parity",
    "bench decode",
    "bench grammar",
    "bench prefill",
    "bench kernels",
    "bench gemm",
    "bench serving",
    "bench overhead",
    "bench storage",
    "bench regress save",
    "bench regress run",
    "bench routes",
}
WITHOUT_A_VARIABLE = {"--help", "--version"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """(name, command) of every command below `command`, groups left out."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path), command
        return
    for name, child in below.items():
        yield from commands(child, (*path, name))


def all_commands() -> dict[str, Any]:
    return dict(commands(typer.main.get_command(app)))


def options(command: Any) -> Iterator[Any]:
    return (parameter for parameter in command.params if parameter.param_type_name == "option")


def test_the_commands_are_those_that_are_documented():
    assert set(all_commands()) == COMMANDS


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_flag_can_be_given_as_a_variable_that_its_help_names(name, octavo: Run):
    help_text = " ".join(octavo(*name.split(), "--help").out.split())
    command = all_commands()[name]
    for option in options(command):
        flags = [*option.opts, *option.secondary_opts]
        if WITHOUT_A_VARIABLE & set(flags):
            continue
        variable = environment_variable(*option.opts)
        assert option.envvar == variable or option.multiple  # of which `texts` reads the variable
        assert f"[env var: {variable}" in help_text
        assert option.help


def test_one_variable_means_the_same_flag_in_every_command():
    meaning: dict[str, set[str]] = {}
    for command in all_commands().values():
        for option in options(command):
            meaning.setdefault(environment_variable(*option.opts), set()).add(option.opts[-1])
    assert all(len(flags) == 1 for flags in meaning.values()), meaning


@pytest.mark.parametrize("arguments", [(), *(tuple(name.split()) for name in sorted(COMMANDS))], ids=" ".join)
def test_help_is_plain_text(octavo, arguments):
    done = octavo(*arguments, "--help", FORCE_COLOR="1")
    assert done.status == 0
    assert done.err == ""
    assert done.out.startswith("Usage: octavo")
    assert "\x1b" not in done.out and "╭" not in done.out


def test_the_flags_of_the_documentation_exist():
    documented = {
        *("-m", "-n", "--max-tokens", "-p", "-f", "--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--stop"),
        *("--chat", "--raw", "--parse-special", "--storage", "--block-size", "--max-context", "--dtype", "--device"),
        *("--threads", "--ignore-eos", "--json"),
    }
    found = {flag for option in options(all_commands()["generate"]) for flag in [*option.opts, *option.secondary_opts]}
    assert documented <= found
