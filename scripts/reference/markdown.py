"""Pieces of Markdown that the pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `make docs-reference` from the code it describes. Changes here are lost. -->"


def page(title: str, *parts: str) -> str:
    """A whole page of paragraphs, lists and tables, parted by blank lines."""
    return "\n\n".join((MADE, f"# {title}", *parts)) + "\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells may hold any text."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"


def codes(texts: Iterable[object]) -> str:
    return ", ".join(map(code, texts))
