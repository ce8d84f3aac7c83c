"""The pages that people write say what is so: paths and names exist, arms and commands are those there are."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from octavo.cli.main import app
from octavo.parity.runner import ARMS
from octavo.storage.route import Route

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "octavo"
WRITTEN = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted(DOCS.glob("*.md"))]
HISTORY = DOCS / "log.md"  # names what there was
_PATH = re.compile(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*\.(?:py|c))`(?: ?\(`([\w.]+)`\))?")
_FOLDER = re.compile(r"`(tests(?:/\w+)*|[a-z_]+/)`")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of a page in one of `languages`."""
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL):
        if language in languages:
            yield body


def test_every_path_of_the_architecture_page_exists_and_has_what_is_named_there() -> None:
    named = _PATH.findall(" ".join(text_of(DOCS / "architecture.md").split()))
    assert len(named) > 50
    for path, attribute in named:
        assert (SOURCE / path).is_file(), path
        if attribute:
            found: Any = importlib.import_module("octavo." + path.removesuffix(".py").replace("/", "."))
            for part in attribute.split("."):
                found = getattr(found, part)


def test_every_part_of_the_source_is_on_the_architecture_page() -> None:
    text = text_of(DOCS / "architecture.md")
    beside = {"bench", "store"}  # on no request's way
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - beside
    assert packages and all(f"`{package}/" in text for package in packages)


@pytest.mark.parametrize("page", [page for page in WRITTEN if page != HISTORY], ids=lambda page: page.name)
def test_every_source_file_and_folder_that_a_page_names_exists(page: Path) -> None:
    for path, _ in _PATH.findall(text_of(page)):
        assert any((root / path).is_file() for root in (ROOT, SOURCE, ROOT / "examples")), path
    for folder in _FOLDER.findall(text_of(page)):
        assert any((root / folder).is_dir() for root in (ROOT, SOURCE)), folder


def test_the_exactness_page_has_every_arm_of_parity_and_no_other() -> None:
    table = text_of(DOCS / "exactness.md").split("| Arm |")[1].split("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(ARMS)


def test_the_storage_page_has_every_route() -> None:
    table = text_of(DOCS / "storage.md").split("| Route |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {route.value for route in Route}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(where, words) of each `octavo …` that a page shows in a block for a shell."""
    for page in WRITTEN:
        for block in blocks(page, "sh", "bash", "console", ""):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s\|\s|&&|\s&$|;", line.split(" #")[0]):
                    words = part.replace("…", "").strip()
                    if re.match(r"(\S*/)?octavo\s", words):
                        yield f"{page.name}: {words}", shlex.split(words)[1:]


LINES = dict(command_lines())


def test_the_pages_show_commands() -> None:
    assert len(LINES) > 20


@pytest.mark.parametrize("where", LINES)
def test_every_command_that_a_page_shows_is_understood(where: str) -> None:
    """By the real parser, which refuses unknown commands and flags and values of the wrong kind. Runs nothing."""
    words, command = LINES[where], typer.main.get_command(app)
    name = "octavo"
    while (below := getattr(command, "commands", None)) is not None:
        name, words = words[0], words[1:]
        command = below[name]
    with command.make_context(name, list(words)) as context:
        assert context.params


def test_every_page_of_python_is_python() -> None:
    for page in WRITTEN:
        for block in blocks(page, "python"):
            compile(block, page.name, "exec")
