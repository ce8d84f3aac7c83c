"""How commands declare their flags, so that each can also be given as an environment variable."""

from __future__ import annotations

import re
from typing import Any

import typer


def option(*flags: str, help: str, **settings: Any) -> Any:  # noqa: A002 - the name that Typer uses
    """A Typer option, for `Annotated`, that `OCTAVO_` + its long name in capitals sets too.

    `option("-n", "--max-tokens", help=...)` reads OCTAVO_MAX_TOKENS. The command line wins over the environment.
    """
    return typer.Option(*flags, help=help, envvar=environment_variable(*flags), show_envvar=True, **settings)


def environment_variable(*flags: str) -> str:
    """The variable that belongs to the first long flag: `--chat/--raw` is set by OCTAVO_CHAT."""
    long_flag = next(flag for flag in flags if flag.startswith("--"))
    name = long_flag.partition("/")[0].removeprefix("--")
    return "OCTAVO_" + re.sub(r"\W", "_", name).upper()
