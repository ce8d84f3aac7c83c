"""Python's garbage collector beside a loop that must not be held up."""

from __future__ import annotations

import gc

_YOUNG = 50_000  # objects beyond those that were given up, before any are looked at


def keep_what_is_there() -> None:
    """Have no full collection walk what exists now: what a loaded model consists of stays, and to walk it takes tenths
    of a second. And look at young objects rarely: a step of hundreds of rows makes thousands that die with it.

    For processes that do little else than run an engine: a cycle of what exists now that dies later is not collected.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
