"""Definitions in plain torch: what every faster kernel must equal. Slow and obvious on purpose."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_start: int,
    k_start: int = 0,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
) -> Tensor:
    """Causal attention of one sequence, one softmax over all visible keys.

    q [T, Hq, Dk] at positions `q_start + t`; k [S, Hkv, Dk] and v [S, Hkv, Dv] at positions `k_start + s`.
    A query sees keys at its own position and before, the last `window` of them if given (itself counted).
    `softcap` c maps scores to c·tanh(s / c). `sink_logits` [Hq] join the softmax and add no value.
    Computed in the dtype of q (pass float64 for an oracle). Returns [T, Hq, Dv]; a row that sees nothing is 0.
    """
    group = q.shape[1] // k.shape[1]
    keys = k.to(q.dtype).repeat_interleave(group, dim=1)
    values = v.to(q.dtype).repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,shd->hts", q, keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    q_position = q_start + torch.arange(q.shape[0], device=q.device)[:, None]
    k_position = k_start + torch.arange(k.shape[0], device=q.device)[None, :]
    visible = k_position <= q_position
    if window is not None:
        visible &= k_position > q_position - window
    scores = scores.masked_fill(~visible, float("-inf"))
    if sink_logits is not None:
        sinks = sink_logits.to(q.dtype)[:, None, None].expand(-1, q.shape[0], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)[..., : k.shape[0]]
    return torch.einsum("hts,shd->thd", weights, values)


def rotate(x: Tensor, position: Tensor, inv_freq: Tensor) -> Tensor:
    """Rotary embedding, half-split pairs: x [T, H, D], position [T], inv_freq [D / 2]; returns x's dtype."""
    angle = position.to(inv_freq.dtype)[:, None] * inv_freq[None, :]
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
