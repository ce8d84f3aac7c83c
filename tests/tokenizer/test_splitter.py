"""Special tokens in text: the longest first, then from the left."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenizer.splitter import SpecialSplitter


def split_by_definition(text: str, tokens: dict[str, int]) -> list[str | int]:
    """Takes the tokens from the longest to the shortest and cuts every run of text at each in turn."""
    runs: list[str | int] = [text] if text else []
    for token in sorted(tokens, key=len, reverse=True):
        cut: list[str | int] = []
        for run in runs:
            if isinstance(run, int):
                cut.append(run)
                continue
            for index, piece in enumerate(run.split(token)):
                cut += [tokens[token]] if index else []
                cut += [piece] if piece else []
        runs = cut
    return runs


@given(
    text=st.text(alphabet="<ab>", max_size=20),
    names=st.sets(st.text(alphabet="<ab>", min_size=1, max_size=4), max_size=4),
)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_text_is_cut_at_the_longest_tokens_first(text: str, names: set[str]) -> None:
    by_length = {len(name): name for name in sorted(names)}  # one per length: equal lengths have no order
    tokens = {name: index for index, name in enumerate(by_length.values())}
    assert SpecialSplitter(tokens).split(text) == split_by_definition(text, tokens)


def test_runs_of_spaces_take_the_longest_token_that_fits() -> None:
    splitter = SpecialSplitter({" " * length: length for length in range(2, 6)})
    assert splitter.split("a" + " " * 8 + "b") == ["a", 5, 3, "b"]


def test_white_space_beside_a_stripping_token_belongs_to_it() -> None:
    splitter = SpecialSplitter({"<l>": 1, "<r>": 2}, lstrip=frozenset({1}), rstrip=frozenset({2}))
    assert splitter.split("a \n<l> b <r> \n c <r> ") == ["a", 1, " b ", 2, "c ", 2]


def test_no_tokens_leave_text_whole_and_no_text_gives_nothing() -> None:
    assert SpecialSplitter({}).split("a<b>") == ["a<b>"]
    assert SpecialSplitter({"<b>": 1}).split("") == []
