"""A few KB between pinned memory of the host and a device's by a kernel, as copy engines take longer to begin."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512


@triton.jit
def copy_words(to_ptr, from_ptr, words, BLOCK: tl.constexpr):
    """Grid (parts of words). 64-bit words."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < words
    tl.store(to_ptr + i, tl.load(from_ptr + i, mask=there), mask=there)


def copy_(to: Tensor, source: Tensor) -> None:
    """Have the current stream copy `source` [N] int64 into `to` [N]; one may be pinned memory of the host. Waits for
    nothing.
    """
    words = len(source)
    assert to.dtype == source.dtype == torch.int64, f"{source.dtype} to {to.dtype}"
    assert len(to) == words, f"{words} words for {len(to)}"
    if words:
        copy_words[(triton.cdiv(words, _BLOCK),)](to, source, words, BLOCK=_BLOCK)
