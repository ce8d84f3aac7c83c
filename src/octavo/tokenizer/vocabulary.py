"""The vocabulary: what each token id is, its text and its raw bytes. It neither encodes text nor knows merges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cached_property

import numpy as np

from octavo.errors import InvalidRequest

SPACE_MARK = "\u2581"


class TokenKind(IntEnum):
    """Kinds of token, numbered as `tokenizer.ggml.token_type` numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class PieceCoding(Enum):
    """How the text of a normal token stands for bytes."""

    BYTE_LEVEL = "byte-level"  # one printable character per byte, as GPT-2 writes them
    SPACE_MARK = "space-mark"  # UTF-8, with U+2581 for a space


def _byte_level_alphabet() -> dict[int, str]:
    """Printable character of every byte: printable Latin-1 stands for itself, the rest from U+0100 upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(0x100) if byte not in alphabet]
    return alphabet | {byte: chr(0x100 + index) for index, byte in enumerate(others)}


BYTE_LEVEL_ALPHABET = _byte_level_alphabet()
_BYTE_OF = {char: byte for byte, char in BYTE_LEVEL_ALPHABET.items()}


def _byte_level_bytes(text: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in text])
    except KeyError:  # not a byte-level token after all: its text is itself
        return text.encode("utf-8", "surrogateescape")


# Texts by which the known model families end a turn. Files often name only one of theirs in the metadata.
END_OF_TURN_TEXTS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>",
        "<end_of_turn>", "<|end_of_turn|>", "<turn|>", "<|tool_response>", "<|endoftext|>", "<|end_of_text|>",
        "<EOT>", "_<EOT>", "<|EOT|>", "[EOT]", "[EOS]", "<eos>", "</s>", "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)  # fmt: skip
# These can be nothing else, so a file that calls them ordinary text is corrected.
_UNMISTAKABLE = frozenset(text for text in END_OF_TURN_TEXTS if "|" in text or "\uff5c" in text) | {"<end_of_turn>"}


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and kinds by id. Immutable apart from its memo of token bytes."""

    texts: Sequence[str]
    kinds: Sequence[int]
    coding: PieceCoding
    _bytes: dict[int, bytes] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids that no ordinary text may become, and that decoding skips: control and unknown tokens."""
        return frozenset(self._ids_of_kind(TokenKind.CONTROL, TokenKind.UNKNOWN))

    def of_kind(self, *kinds: TokenKind) -> dict[str, int]:
        """Text → id of the tokens of these kinds; empty texts are left out."""
        return {text: index for index in self._ids_of_kind(*kinds) if (text := self.texts[index])}

    def _ids_of_kind(self, *kinds: TokenKind) -> list[int]:
        ids: list[int] = np.flatnonzero(np.isin(self._kind_array, kinds)).tolist()
        return ids

    @cached_property
    def _kind_array(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.asarray(self.kinds, dtype=np.int64)

    def token_text(self, token_id: int) -> str:
        """Text as the file spells it; nothing for the padding ids that a model may have past the vocabulary."""
        self._check(token_id)
        return self.texts[token_id] if token_id < len(self.texts) else ""

    def token_bytes(self, token_id: int) -> bytes:
        """Raw bytes the token stands for (control tokens: their text); none for padding ids past the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            self._check(token_id)
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        if token_id >= len(self.texts):
            return b""
        text, kind = self.texts[token_id], self.kinds[token_id]
        if kind == TokenKind.UNUSED:
            return b""
        if kind == TokenKind.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind == TokenKind.NORMAL and self.coding is PieceCoding.BYTE_LEVEL:
            return _byte_level_bytes(text)
        if kind in (TokenKind.NORMAL, TokenKind.USER_DEFINED) and self.coding is PieceCoding.SPACE_MARK:
            text = text.replace(SPACE_MARK, " ")
        return text.encode("utf-8", "surrogateescape")

    def _check(self, token_id: int) -> None:
        if token_id < 0:
            raise InvalidRequest(f"token id {token_id} is negative; give ids from 0 to {len(self) - 1}")


def promote_end_of_turn(texts: Sequence[str], kinds: Sequence[int]) -> list[int]:
    """`kinds` in which tokens that can only be end-of-turn marks are control tokens, as some files forget to say."""
    fixed = list(kinds)
    for index, text in enumerate(texts):
        if text in _UNMISTAKABLE:
            fixed[index] = TokenKind.CONTROL
    return fixed


def end_of_turn_ids(control_tokens: Mapping[str, int], declared: Iterable[int | None]) -> frozenset[int]:
    """All ids that end a turn: those the files declare, and control tokens with a known end-of-turn text."""
    marks = END_OF_TURN_TEXTS & control_tokens.keys()
    if {"<|return|>", "<|call|>"} <= marks:  # the harmony format: <|end|> closes a message, not the turn
        marks -= {"<|end|>"}
    return frozenset(control_tokens[text] for text in marks) | {index for index in declared if index is not None}
