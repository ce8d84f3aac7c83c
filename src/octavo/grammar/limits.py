"""The bounds that hold for every grammar: what compiling it may cost, and one step of it."""

from __future__ import annotations

from llguidance import LLParserLimits

CHECK_CPU_S = 5  # of processor time, to check a grammar
CHECK_WALL_S = 30.0  # the same by the clock, on a machine that is busy
CHECK_BYTES = 1 << 30  # of address space
STEP_S = 2.0  # that one mask may take
TRIAL_STEP_S = 0.5  # the same, while a grammar is checked


STACK_BYTES = 64 << 20  # of address space for a thread that compiles or follows grammars
CHECK_STACK_BYTES = 4 << 20  # the same in the checking process: what holds there holds in the others
MAX_ROW_ITEMS = 10_000  # the library's own bound of 2,000 is met by an object of 500 optional properties


def parser_limits() -> LLParserLimits:
    """The library's bounds on symbols, states and work per step. Its errors are to quote no internals."""
    return LLParserLimits(max_items_in_row=MAX_ROW_ITEMS, verbose_errors=False)
