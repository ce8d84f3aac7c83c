"""Turns a stream of token ids into text deltas. It shares the byte definition of `decode` and keeps no ids."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class IncrementalDetokenizer:
    """Text of a growing token sequence: the joined pushes plus `finish()` equal the decoding of the whole.

    A delta never ends inside a character: bytes that may still become one are held back. Constant work per byte.
    """

    def __init__(self, visible_bytes: Callable[[int], bytes], *, strip_leading_space: bool) -> None:
        """`visible_bytes` gives a token's bytes, or none where it is skipped."""
        self._visible_bytes = visible_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_pending = strip_leading_space

    def push(self, token_id: int) -> str:
        """Text that this token completes, perhaps none. Raises InvalidRequest for a negative id."""
        return self._without_leading_space(self._decoder.decode(self._visible_bytes(token_id)))

    def finish(self) -> str:
        """What was held back: U+FFFD for a character that never came to an end, else nothing. Call it once, last."""
        return self._without_leading_space(self._decoder.decode(b"", final=True))

    def _without_leading_space(self, text: str) -> str:
        if not self._strip_pending or not text:
            return text
        self._strip_pending = False  # once, and only for the very first character
        return text.removeprefix(" ")
