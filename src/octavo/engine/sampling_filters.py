"""Which tokens may be drawn: min-p, top-k and top-p over whole rows. Draws nothing, sorts nothing.

Every sum here is over integers, so it has one value in whatever order a device adds: a row's mask cannot depend on
the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.engine.sampling_workspace import Workspace, to_device
from octavo.sampling_params import SamplingParams

WEIGHT_BITS = 40  # a row's best token weighs 2^40; int64 then holds the sum of 2^22 tokens
_DIGITS = ((20, 11), (10, 10), (0, 10))  # (shift, bits) that cut a 31-bit depth, high to low
_SHORTLIST_FLOOR = -12.0
_SHORTLIST_TOP_K = 4096


def filters(params: SamplingParams, vocab_size: int) -> bool:
    """Whether any filter can remove a token."""
    return params.min_p > 0.0 or ranks(params, vocab_size)


def ranks(params: SamplingParams, vocab_size: int) -> bool:
    """Whether a filter goes by tokens' ranks, not by each one's own logit."""
    return params.top_p < 1.0 or 0 < params.top_k < vocab_size


def fixed_point_weights(z: Tensor, workspace: Workspace) -> Tensor:
    """exp(z) in units of 2^-40, as int64, for `z` float32 `[R, V]` that is at most 0; less than a unit is 0.

    The result is scratch: valid until the next call.
    """
    rows, columns = z.shape
    exponentials = torch.exp(z, out=workspace.take("exponentials", rows, columns, torch.float32))
    return workspace.take("weights", rows, columns, torch.int64).copy_(exponentials.mul_(2.0**WEIGHT_BITS))


def rank_depth(z: Tensor) -> Tensor:
    """int32 `[R, V]` that grows exactly as `z` (float32, at most 0) falls: 0 for the best, the bits of |z| else."""
    return z.abs().view(torch.int32)


def keep_mask(
    z: Tensor, params: Sequence[SamplingParams], workspace: Workspace, row_weights: Tensor | None = None
) -> Tensor:
    """Bool `[R, V]`, true where a token may be drawn.

    `z` is float32 `[R, V]`: logits over temperature, shifted so that the best of each row is 0. In this order:

    * min-p keeps tokens at least `min_p` times as likely as the best one;
    * top-k keeps the `top_k` best of those;
    * top-p keeps the shortest run of the best of those that holds at least `top_p` of their common probability.

    Of tokens with equal logits the one with the lower id counts as better. The best token always stays.
    `row_weights` int64 `[R, 1]` replaces the sum of weights where `z` holds only the best tokens of a row.
    """
    floors = [math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params]
    keep = z >= _column(floors, torch.float32, z)
    limits = [p.top_k if 0 < p.top_k < z.shape[1] else z.shape[1] for p in params]
    masses = [p.top_p for p in params]
    depth = rank_depth(z)
    if min(limits) < z.shape[1]:
        ones = keep.to(torch.int64)
        limit = torch.minimum(_column(limits, torch.int64, z), ones.sum(dim=1, keepdim=True))
        keep &= _best_run(depth, ones, limit)
    if min(masses) < 1.0:
        mass = _column(masses, torch.float64, z)
        weights = fixed_point_weights(z, workspace).mul_(keep)
        total = weights.sum(dim=1, keepdim=True)
        target = ((total if row_weights is None else row_weights) * mass).ceil().to(torch.int64).clamp(min=1)
        # A row without top-p must keep its weightless tail as well, as it does when it is alone.
        keep &= _best_run(depth, weights, torch.minimum(target, total)) | (mass == 1.0)
    return keep


def shortlist(z: Tensor, params: SamplingParams, workspace: Workspace) -> tuple[Tensor, Tensor | None] | None:
    """Ids, ascending, of one row's best tokens among which are all that `keep_mask` keeps, and the row's weight.

    `z` is float32 `[1, V]`. The weight, int64 `[1, 1]`, is None where top-p counts survivors on the list only; the
    whole result is None where no short list is known to be enough. Asks the device for sizes: for the CPU.
    """
    floor = math.log(params.min_p) if params.min_p > 0 else -math.inf
    if 0 < params.top_k <= min(_SHORTLIST_TOP_K, z.shape[1]):
        floor = max(floor, z.topk(params.top_k, dim=1, sorted=False).values.min().item())
    if floor > -math.inf:
        return _ids_above(z, floor), None
    weights = fixed_point_weights(z, workspace)
    total = weights.sum(dim=1, keepdim=True)
    ids = _ids_above(z, _SHORTLIST_FLOOR)
    enough = weights[:, ids].sum() >= total * params.top_p + 1
    return (ids, total) if enough else None


def _ids_above(z: Tensor, floor: float) -> Tensor:
    return (z[0] >= torch.tensor(floor, dtype=torch.float32)).nonzero()[:, 0]


def _column(values: Sequence[float], dtype: torch.dtype, like: Tensor) -> Tensor:
    return to_device(torch.tensor(values, dtype=dtype), like.device)[:, None]


def _best_run(depth: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """Bool `[R, V]`: the shortest run of tokens, by (depth, id), whose weights add up to at least `target`.

    `depth` int32 and `weights` int64 `[R, V]` not negative, `target` int64 `[R, 1]` from 1 to the row's sum.
    A radix selection: digit by digit, from the highest, the weight per digit value tells in which value the target
    falls; that gives the depth of the run's last token, and a running sum over ids divides the tokens of that depth.
    """
    last = torch.zeros_like(target)
    before = torch.zeros_like(target)  # weight of the tokens above those whose leading digits are `last`
    for shift, bits in _DIGITS:
        inside = (depth >> (shift + bits)) == last
        digit = ((depth >> shift) & (2**bits - 1)).to(torch.int64)
        sums = torch.zeros(len(depth), 2**bits, dtype=torch.int64, device=depth.device)
        sums = sums.scatter_add_(1, digit, weights * inside).cumsum(dim=1).add_(before)
        value = (sums < target).sum(dim=1, keepdim=True)  # the first digit value that reaches the target
        before = torch.where(value > 0, sums.gather(1, (value - 1).clamp(min=0)), before)
        last = (last << bits) | value
    tied = depth == last
    tied_weights = weights * tied
    tied_before = tied_weights.cumsum(dim=1) - tied_weights
    return (depth < last) | (tied & (before + tied_before < target))
