"""Triton's interpreter in less time and with its check of overflows in force. What kernels give is the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np


class PatchOnce:
    """Stands in for `_patch_lang` of the interpreter, which patches the language anew at each call between kernels.

    It is patched with the same each time, so once in a launch is enough. When the launch ends, the same is undone.
    """

    def __init__(self, interpreter: ModuleType) -> None:
        self._original = interpreter._patch_lang
        self._languages = (interpreter.tl, interpreter.tl.core)
        self._patched: set[ModuleType] = set()
        self._seen: dict[Callable[..., object], set[ModuleType]] = {}
        patched = self._patched

        class Scope(interpreter._LangPatchScope):
            def restore(self) -> None:
                super().restore()
                patched.clear()

        self._scope = Scope

    def __call__(self, fn: Callable[..., object]) -> Any:
        """The scope that undoes what this call has patched: nothing, where all that `fn` sees is patched already."""
        seen = self._seen.get(fn)
        if seen is None:
            values = fn.__globals__.values()  # type: ignore[attr-defined]
            seen = self._seen[fn] = {each for each in values if inspect.ismodule(each) and each in self._languages}
        scope = self._scope()
        if not seen or not seen <= self._patched:
            scope._changes += self._original(fn)._changes
            self._patched |= seen
        return scope


class OverflowCheck:
    """Stands in for `binary_op_sanitize_overflow_impl` of the interpreter: an integer that does not fit is an error.

    Triton's own computes the same as a graph of operations and, but in debug mode, forgets the outcome.
    """

    def __init__(self) -> None:
        self._operations = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def __call__(self, lhs: Any, rhs: Any, operation: Callable[..., object]) -> None:
        kind = lhs.type.scalar
        if kind.int_bitwidth >= 64:
            return
        found = self._operations[operation.__name__](lhs.handle.data.astype(np.int64), rhs.handle.data.astype(np.int64))
        fits = kind.get_int_min_value() <= found.min() and found.max() <= kind.get_int_max_value()
        assert fits, f"{operation.__name__} of {kind} overflows"


def prepare_interpreter() -> None:
    """From here on, in this process."""
    from triton.runtime import interpreter

    if not isinstance(interpreter._patch_lang, PatchOnce):
        interpreter._patch_lang = PatchOnce(interpreter)
        interpreter.interpreter_semantic.binary_op_sanitize_overflow_impl = OverflowCheck()
