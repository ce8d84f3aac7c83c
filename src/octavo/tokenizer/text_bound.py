"""How few tokens a text may have: what tells a hopeless one before it is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.tokenizer.vocabulary import BYTE_LEVEL_ALPHABET, PieceCoding, Vocabulary

# Bytes of a character and of the marks on it that composing them (NFC) may make one byte of.
_COMPOSED = 4
_KEEPING = {"ByteLevel", "Digits", "Metaspace", "Sequence", "Prepend"}
_SPLITTING = {"Split", "Punctuation"}


@dataclass(frozen=True, slots=True)
class TextBound:
    """No token stands for more than `longest` bytes of a text; for the bytes in `untold` there may be no token."""

    longest: int
    untold: bytes

    def least_tokens(self, text: str) -> int:
        """What `text`, of any length, is encoded to at least. Its unpaired surrogates do not count."""
        told = text.encode("utf-8", "ignore").translate(None, self.untold)
        return -(-len(told) // self.longest)


def text_bound(vocabulary: Vocabulary, *, falls_back: bool, shrinking: int = 1) -> TextBound | None:
    """Of an encoder that drops only what it has no token for, and not even that if it `falls_back` on bytes or an
    unknown token; before, it makes one byte of at most `shrinking`. None where nothing is certain.
    """
    untold = b""
    if not falls_back:
        if vocabulary.coding is not PieceCoding.BYTE_LEVEL:
            return None
        known = frozenset(vocabulary.texts)
        untold = bytes(byte for byte, letter in BYTE_LEVEL_ALPHABET.items() if letter not in known)
    # An unknown token is one character. As a file spells a token it has no fewer bytes than it stands for.
    longest = max(4, *(len(text.encode("utf-8", "surrogateescape")) for text in vocabulary.texts))
    return TextBound(longest * shrinking, untold)


def shrinking_of(steps: Iterable[Mapping[str, Any]]) -> int | None:
    """Of how many bytes the steps of a tokenizer.json, by their descriptions, make one at most; None if they may drop
    any number.
    """
    most = 1
    for step in steps:
        kind = step.get("type")
        if kind == "NFC":
            most *= _COMPOSED
        elif kind == "Replace":
            replaced = step.get("pattern", {}).get("String")
            if replaced is None or len(replaced.encode()) > len(step.get("content", "").encode()):
                return None
        elif kind in _SPLITTING:
            if step.get("behavior") == "Removed":
                return None
        elif kind is not None and kind not in _KEEPING:
            return None
    return most
