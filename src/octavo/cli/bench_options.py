"""Flags, lists of numbers and files that several `octavo bench` commands share."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from octavo.cli.options import option
from octavo.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.bench.percentiles import Spread
    from octavo.bench.served_arm import ServedLoad

PromptLengths = Annotated[str, option("--prompt-tokens", help="Lengths of prompts, exact.")]
Concurrencies = Annotated[str, option("--concurrency", help="Numbers of clients; each with each length.")]
AnswerTokens = Annotated[int, option("--max-tokens", help="Tokens of an answer.")]
Requests = Annotated[int, option("--requests", help="Requests of each client per cell and round.")]
Plot = Annotated[Path | None, option("--plot", help="A .png file to draw (needs matplotlib).")]
PeerPython = Annotated[
    Path | None,
    option("--peer-python", help="Python that has llama.cpp, as llama-cpp-python or xllamacpp (default: this one)."),
]
Rounds = Annotated[int, option("--rounds", help="Times that everything is measured, in turn.")]
Out = Annotated[
    Path | None, option("--out", help="New file for the raw data, JSON lines (default: named by time and model).")
]
Timeout = Annotated[float, option("--timeout", help="Seconds that one request may take.")]


def check_plot_flag(plot: Path | None) -> None:
    """Raises `InvalidRequest` for what would fail after everything is measured."""
    if plot is not None:
        from octavo.bench.plot import check_plot

        check_plot(plot)


def draw_figures(title: str, charts: Mapping[str, Mapping[str, Spread]], plot: Path | None) -> None:
    """Figures by unit and name, where `--plot` says."""
    if plot is not None:
        from octavo.bench.figures_plot import plot_figures

        plot_figures(title, charts, plot)


def counts(text: str, name: str, wanted: str) -> tuple[int, ...]:
    """The numbers of a comma-separated list. Raises `InvalidRequest` that says what was `wanted`."""
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError as error:
        raise InvalidRequest(f"the {name} is {text!r}; give {wanted}") from error


def served_load(
    prompt_tokens: str, concurrency: str, max_tokens: int, requests: int, seed: int | None, timeout: float
) -> ServedLoad:
    """What those flags ask for. Raises `InvalidRequest` for values that cannot be."""
    from octavo.bench.served_arm import ServedLoad

    load = ServedLoad(
        prompt_tokens=counts(prompt_tokens, "prompt length", "numbers of tokens such as 512,4096"),
        concurrencies=counts(concurrency, "concurrency", "numbers of clients such as 1,4,8"),
        max_tokens=max_tokens,
        requests_per_client=requests,
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        timeout_s=timeout,
    )
    load.check()
    return load


@contextmanager
def raw_data(out: Path | None, model: Path, bench: str) -> Iterator[TextIO | None]:
    """The new file that the raw data of a long measurement go to, said at once: there is one even if nobody asked."""
    when = datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
    path = Path(f"{when}-{model.stem}-{bench}.jsonl") if out is None else out
    with written(path, "--out", fresh=True) as file:
        print(f"octavo: raw data go to {path}", file=sys.stderr)
        yield file


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
