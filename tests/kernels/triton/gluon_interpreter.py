"""Gluon kernels under Triton's interpreter, which knows no Gluon: the same source with layouts dropped, and with shared
memory that a copy reaches when it is waited for.

What it cannot show is whether lanes hold what a layout says; Gluon itself refuses layouts that do not fit.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from unittest import mock

import numpy as np
import triton
import triton.experimental
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from octavo.kernels.triton import words


class _Language(ModuleType):
    """`triton.experimental.gluon.language`: Triton's own, given layouts to ignore."""

    def __getattr__(self, name):
        return getattr(tl, name)

    @staticmethod
    def _layout(*_args, **_settings):
        return "layout"

    NVMMADistributedLayout = DotOperandLayout = DistributedLinearLayout = BlockedLayout = SliceLayout = _layout
    SwizzledSharedLayout = _layout

    @staticmethod
    def arange(start, end, layout=None):
        return tl.arange(start, end)

    @staticmethod
    def zeros(shape, dtype, layout=None):
        return tl.zeros(shape, dtype)

    @staticmethod
    def full(shape, value, dtype, layout=None):
        return tl.full(shape, value, dtype)

    @staticmethod
    def convert_layout(value, layout, assert_trivial=False):
        return value

    @staticmethod
    def allocate_shared_memory(dtype, shape, layout):
        return _Shared(np.full([int(size) for size in shape], 0x5A5A5A5A, np.int32))

    @staticmethod
    def inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack):
        return _ASSEMBLY[asm.value](*args)


class _Shared:
    """A part of shared memory, int32."""

    def __init__(self, data):
        self.data = data

    def index(self, at):
        return _Shared(self.data[int(at)])

    def slice(self, start, length):
        return _Shared(self.data[start : start + length])

    def load(self, layout):
        return tl.core.tensor(
            TensorHandle(self.data.copy(), tl.int32), tl.core.block_type(tl.int32, list(self.data.shape))
        )


class _Copies(ModuleType):
    """`async_copy`."""

    def __init__(self):
        super().__init__("async_copy")
        self.begun, self.groups = [], []

    def async_copy_global_to_shared(self, shared, ptrs):
        self.begun.append((shared.data, tl.load(ptrs).handle.data))

    def commit_group(self):
        self.groups.append(self.begun)
        self.begun = []

    def wait_group(self, outstanding):
        while len(self.groups) > outstanding:
            for target, values in self.groups.pop(0):
                target[...] = values


def _mma_v2(a, b, acc):
    return tl.dot(a, b, acc, out_dtype=acc.dtype)


def _scaled_bytes(words, scale):
    return tuple((((words >> (8 * j)) & 255 ^ 128) - 128).to(tl.float16) * scale for j in range(4))


def _scaled_halves(words, low, high):
    shifts = [8 * j for j in range(4)] + [8 * j + 4 for j in range(4)]
    scales = [low] * 4 + [high] * 4
    return tuple(
        (((words >> shift) & 15) - 8).to(tl.float16) * scale for shift, scale in zip(shifts, scales, strict=True)
    )


def _float_pair(words):
    return tuple(
        ((words >> shift) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) for shift in (0, 16)
    )


def _upper_halves(words):
    return (words & -0x0F0F0F10) ^ -0x7F7F7F80


_ASSEMBLY = {words.Q8_ASM.value: _scaled_bytes, words.Q4_ASM.value: _scaled_halves}


def load_decode_codes() -> ModuleType:
    """`decode_codes.py` in a form of its own."""
    gluon, ampere = ModuleType("gluon"), ModuleType("ampere")
    gluon.jit, gluon.constexpr_function, gluon.language = triton.jit, triton.constexpr_function, _Language("language")
    ampere.mma_v2, ampere.async_copy = _mma_v2, _Copies()
    modules = {
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language": gluon.language,
        "triton.experimental.gluon.language.nvidia.ampere": ampere,
    }
    # Gluon itself may have been imported, and be an attribute of the package that it is looked for in.
    with mock.patch.dict(sys.modules, modules), mock.patch.object(triton.experimental, "gluon", gluon, create=True):
        for name in ("octavo.kernels.triton.code_operands", "octavo.kernels.triton.decode_codes"):
            spec = importlib.util.find_spec(name)
            module = importlib.util.module_from_spec(spec)
            module.tl = tl  # what the interpreter looks for
            spec.loader.exec_module(module)
            sys.modules[name] = module
        operands = sys.modules["octavo.kernels.triton.code_operands"]
    _ASSEMBLY[operands.PAIR_ASM.value] = _float_pair
    _ASSEMBLY[operands.UPPER_ASM.value] = _upper_halves
    kernel = module.decode_codes.rewrite()
    kernel.__annotations__ = dict.fromkeys(kernel.__annotations__, "constexpr")
    return module
