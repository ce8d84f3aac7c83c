"""How many characters of a text one token can stand for at most: what tells a hopeless text before it is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.tokenizer.vocabulary import BYTE_LEVEL_ALPHABET, PieceCoding, Vocabulary

# Characters that composing them (NFC) may make one of: a letter and the marks on it.
_COMPOSED = 4
_KEEPING = {"ByteLevel", "Digits", "Metaspace", "Sequence", "Prepend"}
_SPLITTING = {"Split", "Punctuation"}


def longest_token(vocabulary: Vocabulary, *, always_coded: bool = False) -> int | None:
    """Characters of the longest token, where encoding drops none; None where some have no token at all.

    `always_coded`: a character without a token of its own becomes others.
    """
    if not always_coded:
        known = set(vocabulary.texts)
        if vocabulary.coding is not PieceCoding.BYTE_LEVEL or not known.issuperset(BYTE_LEVEL_ALPHABET.values()):
            return None
    return max(map(len, vocabulary.texts), default=0) or None


def normalised_away(nodes: Iterable[Mapping[str, Any]]) -> int | None:
    """Most characters that the steps of a tokenizer.json, by their descriptions, make one of; None if they may drop
    any number.
    """
    most = 1
    for node in nodes:
        kind = node.get("type")
        if kind == "NFC":
            most *= _COMPOSED
        elif kind == "Replace":
            replaced = node.get("pattern", {}).get("String")
            if replaced is None or len(replaced) > len(node.get("content", "")):
                return None
        elif kind in _SPLITTING:
            if node.get("behavior") == "Removed":
                return None
        elif kind is not None and kind not in _KEEPING:
            return None
    return most
