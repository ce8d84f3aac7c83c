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


class KnownShapes:
    """What the language works out about a shape for every type and tensor that has it, kept from the first of them.

    None of it is changed later, so types and tensors of a shape may share it.
    """

    def __init__(self, core: ModuleType) -> None:
        self._core = core
        self._begin_type, self._begin_tensor = core.block_type.__init__, core.tensor.__init__
        self._known: dict[tuple[int, ...], tuple[Any, ...]] = {}
        self._scalar = core.tuple([]), core.constexpr(1)

    def install(self) -> None:
        def begin_type(block: Any, element_ty: Any, shape: Any) -> None:
            self.begin_type(block, element_ty, shape)

        def begin_tensor(tensor: Any, handle: Any, type: Any) -> None:  # noqa: A002
            self.begin_tensor(tensor, handle, type)

        self._core.block_type.__init__, self._core.tensor.__init__ = begin_type, begin_tensor

    def begin_type(self, block: Any, element_ty: Any, shape: Any) -> None:
        core = self._core
        sizes = tuple([each.value if type(each) is core.constexpr else each for each in shape])
        known = self._known.get(sizes) if all(type(each) is int for each in sizes) else None
        if known is None:
            self._begin_type(block, element_ty, shape)
            of_tensors = core.tuple([core.constexpr(each) for each in block.shape]), core.constexpr(block.numel)
            known = self._known[sizes] = block.shape, block.numel, str(block.shape), of_tensors
        block.element_ty = element_ty
        block.shape, block.numel, text, block.of_tensors = known
        block.name = f"<{text}, {element_ty}>"

    def begin_tensor(self, tensor: Any, handle: Any, type: Any) -> None:  # noqa: A002
        if not type.is_block():
            tensor.shape, tensor.numel = self._scalar
        elif hasattr(type, "of_tensors"):
            tensor.shape, tensor.numel = type.of_tensors
        else:
            self._begin_tensor(tensor, handle, type)
            return
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar


class KnownKinds:
    """Stands in for `_get_np_dtype` of the interpreter, which writes its table anew at each call."""

    def __init__(self, interpreter: ModuleType) -> None:
        self._original = interpreter._get_np_dtype
        self._block_type = interpreter.tl.block_type
        self._known: dict[str, Any] = {}

    def __call__(self, kind: Any) -> Any:
        name = kind.element_ty.name if isinstance(kind, self._block_type) else kind.name
        if name not in self._known:
            self._known[name] = self._original(kind)
        return self._known[name]


class Unwrap:
    """Stands in for `_unwrap_if_constexpr` of the language: most of what it is given is no constant, list or tuple."""

    def __init__(self, core: ModuleType) -> None:
        self._original = core._unwrap_if_constexpr
        self._plain = {int, bool, float, str, type(None), core.dtype, core.block_type, core.pointer_type, core.tensor}

    def __call__(self, value: Any) -> Any:
        return value if type(value) in self._plain else self._original(value)


def prepare_interpreter() -> None:
    """From here on, in this process."""
    from triton.runtime import interpreter

    if not isinstance(interpreter._patch_lang, PatchOnce):
        interpreter._patch_lang = PatchOnce(interpreter)
        interpreter.interpreter_semantic.binary_op_sanitize_overflow_impl = OverflowCheck()
        interpreter._get_np_dtype = KnownKinds(interpreter)
        core = interpreter.tl.core
        KnownShapes(core).install()
        core._unwrap_if_constexpr = Unwrap(core)
