"""Log-probabilities for the caller, from the model's own logits: before bias, penalties and temperature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.engine.sampling_filters import WEIGHT_BITS, fixed_point_weights, rank_depth
from octavo.engine.sampling_workspace import Workspace
from octavo.outputs import TokenLogprobs


def token_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: Sequence[int], workspace: Workspace
) -> list[TokenLogprobs]:
    """Log-softmax of `logits` `[R, V]` float32 at `token_ids` int64 `[R]` and at each row's `num_top` best.

    Rows must be sound (no NaN, no +inf, not all -inf). Equal log-probabilities are ordered by token id. The
    normaliser is a sum of integers, hence the same in any batch and on any device up to its `exp`.
    """
    rows, vocab_size = logits.shape
    best = logits.amax(dim=1, keepdim=True)
    z = torch.sub(logits, best, out=workspace.take("z", rows, vocab_size, torch.float32))
    total = fixed_point_weights(z, workspace).sum(dim=1, keepdim=True).to(torch.float64)
    log_total = (total * 2.0**-WEIGHT_BITS).log()
    top_ids = _best_ids(z, min(max(num_top), vocab_size), workspace)
    wanted = torch.cat([token_ids[:, None], top_ids], dim=1)
    logprobs = (z.gather(1, wanted).to(torch.float64) - log_total).to(torch.float32)
    return [
        TokenLogprobs(ids[0], values[0], tuple(zip(ids[1 : k + 1], values[1 : k + 1], strict=True)))
        for ids, values, k in zip(wanted.tolist(), logprobs.tolist(), num_top, strict=True)
    ]


def _best_ids(z: Tensor, count: int, workspace: Workspace) -> Tensor:
    """Ids `[R, count]` of the largest entries, best first, lowest id first among equals."""
    # (depth, id) in one word: keys are unique, so the selection has one answer and one order.
    keys = workspace.take("keys", z.shape[0], z.shape[1], torch.int64).copy_(rank_depth(z)).bitwise_left_shift_(32)
    keys.bitwise_or_(torch.arange(z.shape[1], device=z.device))
    return keys.topk(count, dim=1, largest=False, sorted=True).values.bitwise_and_(2**32 - 1)
