"""Flags, lists of numbers and files that several `octavo bench` commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

from octavo.cli.options import option
from octavo.errors import InvalidRequest

Plot = Annotated[Path | None, option("--plot", help="A .png file to draw (needs matplotlib).")]
Rounds = Annotated[int, option("--rounds", help="Times that everything is measured, in turn.")]
Timeout = Annotated[float, option("--timeout", help="Seconds that one request may take.")]


def check_plot_flag(plot: Path | None) -> None:
    """Raises `InvalidRequest` for what would fail after everything is measured."""
    if plot is not None:
        from octavo.bench.plot import check_plot

        check_plot(plot)


def counts(text: str, name: str, wanted: str) -> tuple[int, ...]:
    """The numbers of a comma-separated list. Raises `InvalidRequest` that says what was `wanted`."""
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError as error:
        raise InvalidRequest(f"the {name} is {text!r}; give {wanted}") from error


@contextmanager
def written(path: Path | None, flag: str, *, fresh: bool = False) -> Iterator[TextIO | None]:
    """The file, opened before anything is measured; None without a path. A `fresh` one must not exist yet."""
    if path is None:
        yield None
        return
    try:
        file = path.open("x" if fresh else "w", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{flag} {str(path)!r} cannot be written ({error.strerror}); name another file") from error
    with file:
        yield file
