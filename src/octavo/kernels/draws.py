"""Tokens drawn from whole rows of logits on a device, in one reading of them: temperature, min-p and the noise."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

_MOST_PARTS = 64  # that a row is cut into
_BLOCK = 1024
_HAS_TRITON = find_spec("triton") is not None


def served(device: torch.device) -> bool:
    """Whether `draw_tokens` runs there."""
    return device.type == "cuda" and _HAS_TRITON


def draw_tokens(logits: Tensor, hashes: Tensor, keys: Tensor, temperatures: Tensor, floors: Tensor) -> Tensor:
    """int64 [R]: of each row of logits [R, V] float32 the token with the largest (logit - best) / temperature + noise.

    Of equals the lowest id; -1 for a row whose best logit is NaN or infinite; temperature 0 takes the best. Tokens of a
    scaled logit below the row's floor are left out. `hashes` [V] and `keys` [R] int64 make the noise, as in
    `TokenNoise`; temperatures and floors [R] float32. Nothing waits for the device.
    """
    from octavo.kernels.triton.sampling import draw_parts, drawn_rows
    from octavo.kernels.triton.step_tokens import best_of_parts

    num_rows, vocab_size = logits.shape
    parts = min(_MOST_PARTS, 1 << (-(-vocab_size // _BLOCK) - 1).bit_length())
    best, scores = torch.empty(2, num_rows, parts, dtype=torch.float32, device=logits.device)
    best_ids, ids = torch.empty(2, num_rows, parts, dtype=torch.int32, device=logits.device)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    size = -(-vocab_size // parts)
    block = min(_BLOCK, 1 << (size - 1).bit_length())
    stride = logits.stride(0)
    best_of_parts[(num_rows, parts)](logits, best, best_ids, vocab_size, stride, PARTS=parts, SIZE=size, BLOCK=block)
    draw_parts[(num_rows, parts)](
        logits,
        best,
        hashes,
        keys,
        temperatures,
        floors,
        scores,
        ids,
        vocab_size,
        stride,
        PARTS=parts,
        SIZE=size,
        BLOCK=block,
        FAST=logits.device.type == "cuda",
    )
    drawn_rows[(num_rows,)](out, scores, ids, best, best_ids, temperatures, PARTS=parts)
    return out
