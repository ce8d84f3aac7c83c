"""The largest logit of each row: the token that greedy sampling takes."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from octavo.kernels.cpu import rowwise as compiled
from octavo.kernels.rows import is_compiled

_MOST_PARTS = 64  # that a row is cut into
_BLOCK = 1024
_HAS_TRITON = find_spec("triton") is not None


def greedy_tokens(logits: Tensor) -> Tensor:
    """logits [R, V] float32 -> int64 [R]: the lowest id of the largest, -1 if that is NaN or infinite.

    Nothing waits for the device.
    """
    if is_compiled(logits) and logits.numel():
        return compiled.greedy(logits)
    if logits.device.type == "cpu" or not _HAS_TRITON or logits.stride(1) != 1:
        best, token_ids = logits.max(dim=1)  # NaN wins over every number; the first of equals is taken
        return token_ids.masked_fill_(~best.isfinite(), -1)
    return greedy_tokens_by_parts(logits, torch.empty(len(logits), dtype=torch.int64, device=logits.device))


def greedy_tokens_by_parts(logits: Tensor, out: Tensor) -> Tensor:
    """`greedy_tokens` by the device's own kernels, into `out` [R] int64."""
    from octavo.kernels.triton.step_tokens import best_of_parts, best_of_rows

    num_rows, vocab_size = logits.shape
    parts = min(_MOST_PARTS, _power_of_two(-(-vocab_size // _BLOCK)))
    best = torch.empty(num_rows, parts, dtype=torch.float32, device=logits.device)
    ids = torch.empty(num_rows, parts, dtype=torch.int32, device=logits.device)
    size = -(-vocab_size // parts)
    block = min(_BLOCK, _power_of_two(size))
    best_of_parts[(num_rows, parts)](
        logits, best, ids, vocab_size, logits.stride(0), PARTS=parts, SIZE=size, BLOCK=block
    )
    best_of_rows[(num_rows,)](out, best, ids, PARTS=parts)
    return out


def _power_of_two(number: int) -> int:
    """The least that is not less."""
    return 1 << (number - 1).bit_length()
