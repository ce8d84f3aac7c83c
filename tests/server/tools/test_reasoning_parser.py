"""Thinking is parted from what is said, at every way to cut the answer."""

from __future__ import annotations

import pytest
from readings import pieces_of, read_thinking

from octavo.server.parsers.reasoning import THINKING, ReasoningParser

CASES = [
    ("think", "<think>\nHm, 2 < 3.\n</think>\n\nYes.", False, "Hm, 2 < 3.", "Yes."),
    ("think", "Hm.\n</think>\nYes.\n", True, "Hm.", "Yes.\n"),
    ("think", "<think>\nHm.</think>Yes.", True, "Hm.", "Yes."),
    ("think", "\n<think>\n\n</think>\n\nYes.", False, "", "Yes."),
    ("think", "No markers, </think> or <think> later.", False, "", "No markers, </think> or <think> later."),
    ("think", "  \n indented", False, "", "  \n indented"),
    ("think", "<think>it never ends </thin", False, "it never ends </thin", ""),
    ("think", "it never ends ", True, "it never ends", ""),
    ("think", "<thi", False, "", "<thi"),
    ("thinking", "<thinking>a</thinking>b", False, "a", "b"),
    ("mistral", "[THINK]a[b[/THINK]c", False, "a[b", "c"),
    ("seed", "<seed:think>a</seed:think>b", False, "a", "b"),
    ("minimax", "a</mm:think>b", True, "a", "b"),
    ("cohere", "<|START_THINKING|>a<|END_THINKING|>b", False, "a", "b"),
    ("gemma", "<|channel>thought\na\n<channel|>b", False, "a", "b"),
]


@pytest.mark.parametrize(("name", "text", "begun", "thought", "said"), CASES, ids=lambda value: str(value)[:30])
def test_thinking_is_read_the_same_at_every_cut(name: str, text: str, begun: bool, thought: str, said: str) -> None:
    for cuts in [(), range(1, len(text)), *((cut,) for cut in range(1, len(text)))]:
        assert read_thinking(name, pieces_of(text, cuts), begun=begun) == (thought, said), cuts


def test_thinking_is_told_as_it_comes() -> None:
    parser = ReasoningParser(THINKING["think"], begun=True)
    assert [parser.push(each) for each in ("a ", "b <", "/think>", " c")] == [
        ("a", ""),
        (" b", ""),
        ("", ""),
        ("", "c"),
    ]
