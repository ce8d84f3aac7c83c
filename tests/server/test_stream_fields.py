"""The table of the live page's stream, in its document, has every field that is sent and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from asgi_calls import fake_app, get

PAGE = Path(__file__).parents[2] / "docs" / "live-page.md"
# Backticked words of the table that are values or other routes.
VALUES = {"running", "waiting"}


def rows() -> dict[str, tuple[list[str], list[str]]]:
    """By the first name of a row: the fields that it is about, and those that it says these have."""
    table = PAGE.read_text(encoding="utf-8").split("| field | meaning |")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, meaning = line.strip("| ").split(" | ")
        fields = re.findall(r"`(\w+)`", names)
        found[fields[0]] = fields, re.findall(r"`(\w+)`", meaning)
    return found


@pytest.fixture(scope="module")
def sent() -> dict[str, Any]:
    answer = get(fake_app(), "/v1/internal/machine")
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    return found


def test_every_field_of_an_event_has_its_row_and_no_row_is_of_another(sent: dict[str, Any]) -> None:
    told = [name for fields, _ in rows().values() for name in fields]
    assert sorted(told) == sorted([*sent, *sent["machine"]])


@pytest.mark.parametrize("name", ["server", "engine", "model", "rates", "requests", "groups"])
def test_a_row_names_every_field_of_what_it_is_about(sent: dict[str, Any], name: str) -> None:
    value = sent[name] if name in sent else sent["machine"][name]
    of_one = value[0] if isinstance(value, list) else value
    told = [each for each in rows()[name][1] if each not in VALUES]
    assert sorted(told) == sorted(of_one)
