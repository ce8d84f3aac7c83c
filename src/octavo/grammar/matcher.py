"""One choice on its way through a grammar. Decides nothing: it takes tokens and tells which may be next."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

MaskRow = npt.NDArray[np.int32]  # [ceil(V / 32)]: bit i of word w is token 32 w + i
Failure = Literal["too complex", "fault"]
_TOO_COMPLEX = ("ParserTooComplex", "LexerTooComplex", "MaxTokensTotal", "MaxTokensParser")


class GrammarMatcher:
    """Tokens are noted when they are sampled, and followed when more is asked, by another thread.

    A matcher that fails allows everything from then on and says why; the caller ends its request.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._noted: list[int] = []
        self.error: str | None = None
        self.failure: Failure | None = None

    def note(self, token_id: int) -> None:
        """The choice goes on with this token."""
        self._noted.append(token_id)

    def fill(self, row: MaskRow) -> None:
        """Set the bits of the tokens that may come next, and clear the others. Releases the GIL."""
        if self.error is None:
            self._follow()
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if self._matcher.is_error():
                complex_ = self._matcher.stop_reason() in _TOO_COMPLEX
                self.fail(self._matcher.get_error(), "too complex" if complex_ else "fault")
            elif not row.any():
                self.fail("no token of this model can follow", "too complex")
        if self.error is not None:
            row.fill(-1)

    def forced(self, most: int, row: MaskRow) -> list[int]:
        """The next tokens, at most `most`, as long as there is a single one that may come. They are noted already.

        `row` is scratch. What goes wrong here goes wrong again when a mask is filled, and is told then.
        """
        found: list[int] = []
        if self.error is None:
            self._follow()
        while self.error is None and len(found) < most:
            # The mask decides. What is asked before it takes a tenth of the time, and mostly nothing is forced.
            at_end = self._matcher.is_stopped()
            if not (at_end or self._matcher.compute_ff_tokens()):
                break
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            token_id = None if self._matcher.is_error() else only_token(row)
            if token_id is None:
                break
            found.append(token_id)
            if at_end:
                break
            self._matcher.consume_token(token_id)
        return found

    def _follow(self) -> None:
        if self._noted:
            self._matcher.consume_tokens(self._noted)
            self._noted.clear()

    def fail(self, error: str, failure: Failure) -> None:
        """It cannot be followed any more."""
        self.error = f"the grammar cannot be followed further: {' '.join(error.split())}"
        self.failure = failure


def only_token(row: MaskRow) -> int | None:
    """The token that a mask allows, if it is one alone."""
    words = np.flatnonzero(row)
    if len(words) != 1:
        return None
    bits = int(row[words[0]]) & 0xFFFFFFFF
    return None if bits & (bits - 1) else 32 * int(words[0]) + bits.bit_length() - 1
