"""What a profile of engine steps is, and whether it can be written where it shall be. Imports no torch."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import InvalidRequest

DEFAULT_STEPS = 16
MAX_STEPS = 1000  # a step of a large model is thousands of events, which are kept in memory until the end


@dataclass(frozen=True, slots=True)
class Profile:
    """`path` is a Chrome trace of `steps` steps; None where there was no step, or an `error`, one line, instead."""

    path: str | None
    steps: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Where profiles go, and after how many steps one ends by itself."""

    directory: Path
    num_steps: int = DEFAULT_STEPS

    @classmethod
    def of(cls, directory: Path | None, num_steps: int) -> ProfileSettings | None:
        """What `--profile` and `--profile-steps` ask for, None without the former. Makes the directory.

        Raises `InvalidRequest` for a number that cannot be and for a directory that cannot be written to.
        """
        if not 1 <= num_steps <= MAX_STEPS:
            raise InvalidRequest(f"--profile-steps is {num_steps}; it must be from 1 to {MAX_STEPS}")
        if directory is None:
            return None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise InvalidRequest(
                f"--profile {str(directory)!r} cannot be written to ({error.strerror}); name another directory"
            ) from error
        return cls(directory.resolve(), num_steps)
