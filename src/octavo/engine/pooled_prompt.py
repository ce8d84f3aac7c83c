"""One vector of a prompt's hidden states, gathered while the prompt is computed, however it is cut. Runs no model."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from octavo.request import Pooling

UNSOUND_VECTOR = (
    "the hidden states of the prompt hold NaN or infinities; the model's weights or the compute dtype are at fault: "
    "try --dtype float32"
)
_BLOCK = 16  # rows that are summed at once, at absolute positions: the order of additions is that of no chunk


class PooledPrompt:
    """`mean` is the mean of all the prompt's hidden states, `last` that of its last token.

    Sums are float64, of whole blocks of 16 positions, the last one filled up with zeros. So the vector does not depend
    on chunks. What was taken before a preemption is not taken again.
    """

    def __init__(self, num_tokens: int, pooling: Pooling) -> None:
        self._num_tokens = num_tokens
        self._mean = pooling == "mean"
        self._num_taken = 0
        self._block: Tensor | None = None  # [16, H] in the hidden states' dtype: a block that is not complete
        self._sum: Tensor | None = None  # [H] float64

    def add(self, hidden: Tensor, start: int) -> None:
        """Take the hidden states [T, H], after the last norm, of the tokens at positions `start` and on."""
        stop = min(start + len(hidden), self._num_tokens)
        if not self._mean:
            if start < self._num_tokens == stop:
                self._sum = hidden[stop - 1 - start].double()
                self._num_taken = stop
            return
        assert start <= self._num_taken, "a part of the prompt was left out"
        while (first := self._num_taken) < stop:
            last = min(first - first % _BLOCK + _BLOCK, stop)
            self._take(hidden[first - start : last - start], first % _BLOCK)
            self._num_taken = last

    def _take(self, rows: Tensor, at: int) -> None:
        if self._sum is None or self._block is None:
            self._block = rows.new_zeros(_BLOCK, rows.shape[1])
            self._sum = rows.new_zeros(rows.shape[1], dtype=torch.float64)
        self._block[at : at + len(rows)] = rows
        if at + len(rows) == _BLOCK:
            self._sum += self._block.double().sum(0)
            self._block.zero_()

    @cached_property
    def vector(self) -> tuple[float, ...] | None:
        """Its direction: float32 values [H] of length 1. None if they are not finite.

        Raises `AssertionError` while a part of the prompt is not computed.
        """
        assert self._num_taken == self._num_tokens, "the prompt is not computed to its end"
        assert self._sum is not None
        total = self._sum if self._block is None else self._sum + self._block.double().sum(0)
        values = total.cpu()
        length = float(values.square().sum().sqrt())
        if not math.isfinite(length):
            return None
        return tuple((values / (length or 1.0)).float().tolist())
