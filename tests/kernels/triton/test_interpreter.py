"""The interpreter as tests have it: what kernels give under it, what it leaves behind, and what it refuses."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.kernels.triton.decode_cases import DecodeCase
from tests.kernels.triton.interpreter import PatchOnce

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted only where there is no GPU")


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def _sums(x_ptr, out_ptr, n: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, n))
    tl.store(out_ptr, tl.sum(_sum(x, x)))


class Counted:
    """What the interpreter does of its own, counted."""

    def __init__(self, original):
        self.original = original
        self.calls = 0

    def __call__(self, fn):
        self.calls += 1
        return self.original(fn)


@pytest.fixture
def own(monkeypatch):
    """The interpreter as Triton has it."""
    installed = interpreter._patch_lang
    assert isinstance(installed, PatchOnce)
    counted = Counted(installed._original)
    monkeypatch.setattr(interpreter, "_patch_lang", counted)
    return counted


@pytest.fixture
def once(own, monkeypatch):
    """Have it patch once."""

    def begin():
        own.calls = 0
        monkeypatch.setattr(interpreter, "_patch_lang", PatchOnce(interpreter))

    return begin


def builtins():
    """Names of what the interpreter has not replaced."""
    owners = (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base)
    return [{name for name, value in vars(owner).items() if tl.core.is_builtin(value)} for owner in owners]


def sums(*numbers):
    out = torch.zeros(1, dtype=torch.int32)
    _sums[(1,)](torch.tensor(numbers, dtype=torch.int32), out, n=len(numbers))
    return int(out)


def test_kernels_give_the_same_bits_and_leave_the_language_as_they_leave_it_without(own, once):
    case = {"lengths": [40, 0, 23], "k_codec": "q8_0", "v_codec": "q4_0", "window": 30, "sinks": True}
    expected, kept, calls = DecodeCase(**case).run(), builtins(), own.calls
    once()
    for _ in range(2):
        assert torch.equal(DecodeCase(**case).run(), expected)
        assert builtins() == kept and kept[0]
    assert own.calls * 4 < calls


def test_a_launch_that_fails_leaves_the_next_as_it_was(own, once):
    assert sums(1, 2) == 6
    kept = builtins()
    once()
    with pytest.raises(interpreter.InterpreterError):
        _sums[(1,)](torch.zeros(2, dtype=torch.int32), None, n=2)
    assert builtins() == kept
    assert sums(1, 2) == 6


@pytest.mark.parametrize("number", [2**30, -(2**30) - 1], ids=["above", "below"])
def test_an_integer_that_overflows_is_an_error(number):
    with pytest.raises(interpreter.InterpreterError, match="add of int32 overflows"):
        sums(number, 0)


def test_the_least_and_the_greatest_integer_are_none():
    assert sums(-(2**30)) == -(2**31)
    assert sums(2**30 - 1) == 2**31 - 2
