"""How commands declare their flags, so that each can also be given as an environment variable."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import typer


def option(*flags: str, help: str, **settings: Any) -> Any:  # noqa: A002 - the name that Typer uses
    """A Typer option, for `Annotated`, that `OCTAVO_` + its long name in capitals sets too.

    `option("-n", "--max-tokens", help=...)` reads OCTAVO_MAX_TOKENS. The command line wins over the environment.
    """
    return typer.Option(*flags, help=help, envvar=environment_variable(*flags), show_envvar=True, **settings)


def list_option(*flags: str, help: str, **settings: Any) -> Any:  # noqa: A002 - the name that Typer uses
    """A Typer option for texts that may be given several times; its command reads it through `texts`.

    Typer would split the variable's value at white space, which a text may contain.
    """
    variable = environment_variable(*flags)
    source = f"[env var: {variable}, one text as it is or a JSON array of texts]"
    return typer.Option(*flags, help=f"{help}  {source}", **settings)


def texts(given: Sequence[str] | None, *flags: str) -> tuple[str, ...]:
    """The texts of a `list_option`: from the command line, else from its variable.

    The variable holds one text, taken verbatim, unless it is a JSON array of texts.
    """
    if given:
        return tuple(given)
    value = os.environ.get(environment_variable(*flags), "")
    if not value:
        return ()
    try:
        parsed = json.loads(value)
    except ValueError:
        return (value,)
    if isinstance(parsed, list) and parsed and all(isinstance(each, str) for each in parsed):
        return tuple(parsed)
    return (value,)


def environment_variable(*flags: str) -> str:
    """The variable that belongs to the first long flag: `--chat/--raw` is set by OCTAVO_CHAT."""
    long_flag = next(flag for flag in flags if flag.startswith("--"))
    name = long_flag.partition("/")[0].removeprefix("--")
    return "OCTAVO_" + re.sub(r"\W", "_", name).upper()
