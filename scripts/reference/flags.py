"""Every command with every flag, as the parser itself has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from octavo.cli.main import app
from octavo.cli.options import environment_variable
from scripts.reference.markdown import code, page, table

# Read by the code, and set by no flag.
VARIABLES = {
    "OCTAVO_MODELS": "Directory of model files; without it `octavo/models` of the user's cache directory.",
    "OCTAVO_CPU_KERNELS": "0: use torch's kernels on a CPU, and compile none.",
    "OCTAVO_PAGED_ATTENTION_NATIVE": "0: paged rows are gathered before they are attended to; 1: the fused kernel "
    "wherever there is one. Unset: Octavo chooses.",
    "OCTAVO_SDPA_DETERMINISTIC": "1: deterministic kernels on a GPU; where torch has none, it says so.",
    "OCTAVO_DEBUG": "1: show the traceback of an error that is Octavo's fault.",
}
_VARIABLE_NOTE = re.compile(r"\s*\[env var: .*\]$")  # which help texts of repeatable flags end with


def flags_page() -> str:
    parts = [
        "A flag wins over its variable. A pair such as `--chat/--raw` has the variable of the first: `OCTAVO_CHAT=0` "
        "is `--raw`. The variable of a flag that may be given several times holds one text, or a JSON array of texts."
    ]
    for name, command in commands(typer.main.get_command(app)):
        parts.append(f"## octavo {name}")
        parts.append(" ".join(command.help.split()))
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        if arguments:
            parts.append(table(("Argument", ""), ((code(_metavar(each)), each.help or "") for each in arguments)))
        options = [each for each in command.params if each.param_type_name == "option" and "--help" not in each.opts]
        if options:
            parts.append(table(("Flag", "Default", "Variable", ""), map(_row, options)))
    parts += ["## Variables without a flag", table(("Variable", ""), ((code(n), t) for n, t in VARIABLES.items()))]
    return page("Flags", *parts)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """(name, command) of every command below `command`, in the order of the help."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path), command
        return
    for name, child in below.items():
        yield from commands(child, (*path, name))


def _row(option: Any) -> tuple[str, str, str, str]:
    flags = ", ".join(map(code, option.opts))
    if option.secondary_opts:
        flags += " / " + ", ".join(map(code, option.secondary_opts))
    return flags, _default(option), code(environment_variable(*option.opts)), _VARIABLE_NOTE.sub("", option.help)


def _default(option: Any) -> str:
    if option.required:
        return "needed"
    if option.default is None or option.default == "":
        return ""
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    return code(option.default)


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())
