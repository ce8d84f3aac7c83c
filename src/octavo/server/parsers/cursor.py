"""A place in a text that is still growing.

Readers are generators: one that needs more text yields, and goes on with it. So it is written as if the whole text were
there, and cannot tell how it was cut.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")
Reading = Generator[None, None, Result]


class Malformed(Exception):
    """The text is not what a reader takes, or has ended too early."""


class Cursor:
    """`text[at:]` is still to be read; what is before `at` stays until `drop`."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.ran_out = False  # since it was last cleared: more was wanted than there is

    def drop(self) -> None:
        """Forget what is before `at`, which is 0 afterwards."""
        self.text, self.at = self.text[self.at :], 0

    def peek(self) -> Reading[str]:
        """The next character, which stays; empty at the end of the answer."""
        while self.at == len(self.text):
            if self.ended:
                self.ran_out = True
                return ""
            yield
        return self.text[self.at]

    def space(self) -> Reading[str]:
        """Skip white space; the character after it, which stays; empty at the end."""
        char = yield from self.peek()
        while char and char.isspace():
            self.at += 1
            char = yield from self.peek()
        return char

    def starts_with(self, word: str) -> Reading[bool]:
        """Whether `word` comes next. Nothing is taken."""
        while True:
            here = self.text[self.at : self.at + len(word)]
            if here == word:
                return True
            if self.ended or not word.startswith(here):
                self.ran_out |= word.startswith(here)
                return False
            yield

    def take(self, word: str) -> Reading[bool]:
        """Take `word` if it comes next; whether it did."""
        found = yield from self.starts_with(word)
        if found:
            self.at += len(word)
        return found

    def expect(self, word: str) -> Reading[None]:
        """Take `word`. Raises `Malformed` if something else comes."""
        if not (yield from self.take(word)):
            raise Malformed

    def find(self, words: Sequence[str]) -> tuple[int, str]:
        """Where the first of `words` starts, and which it is; else where one may still start, and nothing.

        Of two at one place the longer counts. Without any, the place is the end of the text.
        """
        found = [(place, -len(word), word) for word in words if (place := self.text.find(word, self.at)) >= 0]
        place, _, word = min(found, default=(len(self.text), 0, ""))
        if not self.ended:
            longest = max(map(len, words), default=0)
            for open_end in range(max(self.at, len(self.text) - longest + 1), min(place + 1, len(self.text))):
                tail = self.text[open_end:]
                if any(len(each) > len(tail) and each.startswith(tail) for each in words):
                    return open_end, ""
        return place, word
