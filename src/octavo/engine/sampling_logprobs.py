"""Log-probabilities for the caller, from the model's own logits: before bias, penalties and temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.engine.sampling_filters import WEIGHT_BITS, fixed_point_weights, rank_depth
from octavo.engine.sampling_workspace import Workspace
from octavo.outputs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Of each row its token and its best ones: `ids` int64 and `logprobs` float32, both [R, 1 + most of `num_top`]."""

    ids: Tensor
    logprobs: Tensor
    num_top: Sequence[int]

    def told(self) -> list[TokenLogprobs]:
        """Waits for the device."""
        return _told(self.ids.tolist(), self.logprobs.tolist(), self.num_top)

    def words(self) -> Tensor:
        """All of it as int64 [2 R (1 + k)], for one copy to the host."""
        return torch.cat((self.ids.flatten(), self.logprobs.view(torch.int32).to(torch.int64).flatten()))

    @staticmethod
    def told_of(words: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
        """What `told` gives, from `words` that have arrived."""
        ids, bits = np.array(words, dtype=np.int64).reshape(2, len(num_top), -1)
        return _told(ids.tolist(), bits.astype(np.int32).view(np.float32).tolist(), num_top)


def scored_tokens(logits: Tensor, token_ids: Tensor, num_top: Sequence[int], workspace: Workspace) -> ScoredTokens:
    """Log-softmax of `logits` `[R, V]` float32 at `token_ids` int64 `[R]` and at each row's `num_top` best.

    Equal log-probabilities are ordered by token id. The normaliser is a sum of integers, hence the same in any batch
    and on any device up to its `exp`. What is told of a row that is not sound (NaN, +inf, all -inf) means nothing. The
    host does not wait for the device.
    """
    rows, vocab_size = logits.shape
    best = logits.amax(dim=1, keepdim=True)
    z = torch.sub(logits, best, out=workspace.take("z", rows, vocab_size, torch.float32))
    total = fixed_point_weights(z, workspace).sum(dim=1, keepdim=True).to(torch.float64)
    log_total = (total * 2.0**-WEIGHT_BITS).log()
    top_ids = _best_ids(z, min(max(num_top), vocab_size), workspace)
    wanted = torch.cat([token_ids[:, None], top_ids], dim=1)
    return ScoredTokens(wanted, (z.gather(1, wanted).to(torch.float64) - log_total).to(torch.float32), num_top)


def _told(ids: list[list[int]], logprobs: list[list[float]], num_top: Sequence[int]) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(row[0], values[0], tuple(zip(row[1 : k + 1], values[1 : k + 1], strict=True)))
        for row, values, k in zip(ids, logprobs, num_top, strict=True)
    ]


def _best_ids(z: Tensor, count: int, workspace: Workspace) -> Tensor:
    """Ids `[R, count]` of the largest entries, best first, lowest id first among equals."""
    # (depth, id) in one word: keys are unique, so the selection has one answer and one order.
    keys = workspace.take("keys", z.shape[0], z.shape[1], torch.int64).copy_(rank_depth(z)).bitwise_left_shift_(32)
    keys.bitwise_or_(torch.arange(z.shape[1], device=z.device))
    return keys.topk(count, dim=1, largest=False, sorted=True).values.bitwise_and_(2**32 - 1)
