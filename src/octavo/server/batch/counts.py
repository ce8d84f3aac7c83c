"""How many lines of a batch came to what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BatchCounts:
    """`kept` answers were there already; `failed` lines have an error, or an answer other than 200."""

    answered: int = 0
    failed: int = 0
    kept: int = 0

    @property
    def total(self) -> int:
        return self.answered + self.failed + self.kept
