"""What rows ask of the kernels that draw tokens on a device. Draws nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.engine.sampling_filters import ranks
from octavo.engine.sampling_random import row_key
from octavo.engine.sampling_workspace import to_device
from octavo.kernels.draws import DrawSettings
from octavo.sampling_params import SamplingParams

_ALIGNMENT = 4
_SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny  # what is smaller would become 0 in float32


class DrawnRow(Protocol):
    """What a draw needs to know of a row."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def seed(self) -> int: ...
    @property
    def choice(self) -> int: ...
    @property
    def position(self) -> int: ...


def divisor_of(params: SamplingParams) -> float:
    """The temperature as float32 can hold it; 0 where the best token is taken."""
    return 0.0 if params.greedy else max(params.temperature, _SMALLEST_TEMPERATURE)


def draw_settings(rows: Sequence[DrawnRow], vocab_size: int, device: torch.device) -> DrawSettings:
    """The rows' settings, on their way to the device in one copy."""
    words, ranked = draw_words(rows, vocab_size, len(rows))
    return settings_of(to_device(torch.from_numpy(words), device), ranked=ranked)


def draw_words(rows: Sequence[DrawnRow], vocab_size: int, size: int) -> tuple[NDArray[np.int64], bool]:
    """What `settings_of` takes, [words] int64, and whether a row has a filter that ranks tokens. Rows past those given,
    up to `size`, take the best token.
    """
    count = len(rows)
    # Rows of 64-bit words: keys | temperatures, floors | limits | shares. Each part begins where a kernel compiled for
    # any other count would have it begin: at a multiple of 16 bytes.
    padded = -(-size // _ALIGNMENT) * _ALIGNMENT
    words = np.zeros((4, padded), dtype=np.int64)
    words[0, :count] = np.array([row_key(row.seed, row.choice, row.position) for row in rows], dtype=np.uint64).view(
        np.int64
    )
    halves = words[1].view(np.float32)
    halves[:count] = [divisor_of(row.params) for row in rows]
    halves[padded : padded + count] = [_floor(row.params) for row in rows]
    ranked = any(ranks(row.params, vocab_size) for row in rows if not row.params.greedy)
    if ranked:
        words[2].view(np.int32)[:count] = [_limit(row.params, vocab_size) for row in rows]
        words[3].view(np.float64)[:count] = [1.0 if row.params.greedy else row.params.top_p for row in rows]
    return words.reshape(-1), ranked


def settings_of(words: Tensor, *, ranked: bool) -> DrawSettings:
    """Settings that lie in `words`, on whatever device."""
    keys, halves, limits, shares = words.view(4, -1)
    temperatures, floors = halves.view(torch.float32).chunk(2)
    if not ranked:
        return DrawSettings(keys, temperatures, floors)
    return DrawSettings(keys, temperatures, floors, limits.view(torch.int32), shares.view(torch.float64))


def _floor(params: SamplingParams) -> float:
    """Of scaled logits that min-p keeps."""
    return math.log(params.min_p) if params.min_p > 0 else -math.inf


def _limit(params: SamplingParams, vocab_size: int) -> int:
    """Tokens that top-k keeps."""
    return params.top_k if not params.greedy and 0 < params.top_k < vocab_size else vocab_size
