"""Tokens drawn from rows of logits on a device, by kernels that read the logits once or a few times."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

_MOST_PARTS = 64  # that a row is cut into
_BLOCK = 1024
_LISTED = 4096  # best tokens of a row that are looked at first
_BINS = 256
_HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """Of R rows or more, on the device. `keys` [R] int64 make the noise with token hashes, as in `TokenNoise`.

    `temperatures` [R] float32, 0 for the best token; `floors` [R] float32 of scaled logits that min-p keeps. `limits`
    [R] int32, the vocabulary's size or more for none, are of top-k and `shares` [R] float64 of top-p; None if no row
    has either.
    """

    keys: Tensor
    temperatures: Tensor
    floors: Tensor
    limits: Tensor | None = None
    shares: Tensor | None = None


def scratch_bytes() -> int:
    """Of a row while it is drawn."""
    return _MOST_PARTS * (_BINS * 4 + 40) + _LISTED * 8


def served(device: torch.device, vocab_size: int) -> bool:
    """Whether `draw_tokens` runs there."""
    return device.type == "cuda" and _HAS_TRITON and vocab_size < 1 << 20


def draw_tokens(
    logits: Tensor, hashes: Tensor, settings: DrawSettings, listed: int = _LISTED, out: Tensor | None = None
) -> Tensor:
    """int64 [R]: of each row of logits [R, V] float32 the token with the largest (logit - best) / temperature + noise,
    of those that the row's filters keep; of equals the lowest id; -1 for a row whose best logit is NaN or infinite.

    `hashes` [V] int64 are the tokens' own. The result is `out`, if that is given. Nothing waits for the device.
    """
    from octavo.kernels.triton.sampling import draw_parts, drawn_rows
    from octavo.kernels.triton.step_tokens import best_of_parts

    num_rows, vocab_size = logits.shape
    parts = min(_MOST_PARTS, 1 << (-(-vocab_size // _BLOCK) - 1).bit_length())
    best, scores = torch.empty(2, num_rows, parts, dtype=torch.float32, device=logits.device)
    best_ids, ids = torch.empty(2, num_rows, parts, dtype=torch.int32, device=logits.device)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device) if out is None else out
    size = -(-vocab_size // parts)
    block = min(_BLOCK, 1 << (size - 1).bit_length())
    stride = logits.stride(0)
    fast = logits.device.type == "cuda"
    cut = {"PARTS": parts, "SIZE": size, "BLOCK": block}
    best_of_parts[(num_rows, parts)](logits, best, best_ids, vocab_size, stride, **cut)
    scale = (best, settings.temperatures, settings.floors)
    ranked_ids = ids
    if settings.limits is not None:
        ranked_ids = _draw_ranked(logits, hashes, scale, settings, cut, listed)
    draw_parts[(num_rows, parts)](
        logits, best, hashes, settings.keys, *scale[1:], scores, ids, vocab_size, stride, **cut, FAST=fast
    )
    drawn_rows[(num_rows,)](
        out,
        scores,
        ids,
        best,
        best_ids,
        settings.temperatures,
        settings.limits,
        settings.shares,
        ranked_ids,
        vocab_size,
        PARTS=parts,
        RANKED=settings.limits is not None,
    )
    return out


def _draw_ranked(
    logits: Tensor,
    hashes: Tensor,
    scale: tuple[Tensor, Tensor, Tensor],
    settings: DrawSettings,
    cut: dict[str, int],
    listed: int,
) -> Tensor:
    """int32 [R]: the tokens of rows that have limits or shares; those of others mean nothing."""
    from octavo.kernels.triton.sampling_ranks import choose_bins, count_bins, draw_from_list, draw_from_row, list_tokens

    device, parts = logits.device, cut["PARTS"]
    (num_rows, vocab_size), stride = logits.shape, logits.stride(0)
    fast = device.type == "cuda"
    counts = torch.empty(num_rows, parts, _BINS, dtype=torch.int32, device=device)
    totals = torch.empty(num_rows, parts, dtype=torch.int64, device=device)
    last_bins, unfinished, token_ids = (torch.empty(num_rows, dtype=torch.int32, device=device) for _ in range(3))
    offsets = torch.empty(num_rows, parts, dtype=torch.int32, device=device)
    sizes = torch.empty(num_rows, 2, dtype=torch.int32, device=device)
    list_z = torch.empty(num_rows, listed, dtype=torch.float32, device=device)
    list_ids = torch.empty(num_rows, listed, dtype=torch.int32, device=device)
    limits, shares = settings.limits, settings.shares
    count_bins[(num_rows, parts)](logits, *scale, counts, totals, vocab_size, stride, **cut, FAST=fast)
    choose_bins[(num_rows,)](counts, last_bins, offsets, sizes, PARTS=parts, CAPACITY=listed, num_warps=8)
    list_tokens[(num_rows, parts)](
        logits, *scale, last_bins, offsets, list_z, list_ids, vocab_size, stride, **cut, CAPACITY=listed
    )
    draw_from_list[(num_rows,)](
        list_z,
        list_ids,
        sizes,
        totals,
        limits,
        shares,
        hashes,
        settings.keys,
        token_ids,
        unfinished,
        vocab_size,
        PARTS=parts,
        CAPACITY=listed,
        FAST=fast,
        num_warps=8,
    )
    draw_from_row[(num_rows,)](
        logits,
        *scale,
        limits,
        shares,
        sizes,
        hashes,
        settings.keys,
        token_ids,
        unfinished,
        vocab_size,
        stride,
        PARTS=parts,
        BLOCK=4096 if fast else 1024,
        FAST=fast,
        num_warps=16,
    )
    return token_ids
