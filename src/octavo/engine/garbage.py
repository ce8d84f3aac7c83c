"""Python's garbage collector beside a loop that must not be held up."""

from __future__ import annotations

import gc


def keep_what_is_there() -> None:
    """Have no full collection walk what exists now: what a loaded model consists of stays, and to walk it takes tenths
    of a second. For processes that do little else than run an engine: a cycle of it that dies later is not collected.
    """
    gc.collect()
    gc.freeze()
