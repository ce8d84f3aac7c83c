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
    """Tokens are noted when they are sampled, and followed when the next mask is filled, by another thread.

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
            if self._noted:
                self._matcher.consume_tokens(self._noted)
                self._noted.clear()
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if self._matcher.is_error():
                complex_ = self._matcher.stop_reason() in _TOO_COMPLEX
                self.fail(self._matcher.get_error(), "too complex" if complex_ else "fault")
            elif not row.any():
                self.fail("no token of this model can follow", "too complex")
        if self.error is not None:
            row.fill(-1)

    def fail(self, error: str, failure: Failure) -> None:
        """It cannot be followed any more."""
        self.error = f"the grammar cannot be followed further: {' '.join(error.split())}"
        self.failure = failure
