"""Elementwise work whose result at one element never depends on how many elements there are.

Torch hands slices of a large tensor to threads; where a slice does not end on a vector boundary its last elements
go through a scalar path that may round differently. Up to two threads split our sizes evenly; beyond that we cut
by whole rows into pieces too small for torch to split.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_GRAIN = 32768  # elements below which torch never splits elementwise work (at::internal::GRAIN_SIZE)


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)` for an elementwise `function` of a contiguous x [..., N], invariant to the leading sizes."""
    if x.device.type != "cpu" or x.numel() <= _GRAIN or torch.get_num_threads() <= 2:
        return function(x)
    rows = x.reshape(-1, x.shape[-1])
    step = max(1, _GRAIN // x.shape[-1])
    pieces = [function(rows[i : i + step]) for i in range(0, rows.shape[0], step)]
    return torch.cat(pieces).view(x.shape)
