"""Stores one element beyond its operand: what shows that a memory checker would have seen an error of ours."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def store(out_ptr, count):
    offsets = tl.arange(0, 1024)
    tl.store(out_ptr + offsets, 1.0, mask=offsets <= count)


if __name__ == "__main__":
    out = torch.zeros(512, device="cuda")  # 2 KiB, and no more: torch's caching of memory must be off
    store[(1,)](out, 512)
    torch.cuda.synchronize()
