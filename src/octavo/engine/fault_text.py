"""What to say of an exception that nobody expected: one line for a person, and the traceback for who debugs."""

from __future__ import annotations

import traceback
from pathlib import Path

from octavo.errors import OctavoError


def cause_of(error: BaseException) -> str:
    """One line: kind, message, and the place where it was raised; our own exceptions speak for themselves."""
    text = " ".join(str(error).split())
    if isinstance(error, OctavoError):
        return text
    kind = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{kind}: {text}{place}" if text else f"{kind}{place}"
