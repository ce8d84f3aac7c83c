"""Attention of one token of each of several sequences in a few products, in torch. Float32; no promise about bits.

For devices where a launch costs more than a short sequence: `chunked_attention` takes one sequence after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.kernels.chunked_attention import HIDDEN


def attend_side_by_side(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor | None,
    *,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of q [R, Hq, Dk], one row per sequence, over k [Hkv, R · L, Dk] and v [Hkv, R · L, Dv]; all float32.

    Sequence i has the L keys from `i · L` on, of which it does not see those that `hidden` [R, L] bool marks (None: it
    sees all); these must be finite, too. `sinks` [Hq] are learned logits that join each softmax and add no value.
    Returns [R, Hq, Dv] float32: `reference.attention` of each sequence, with sums in another order.
    """
    num_rows, num_q_heads, k_dim = q.shape
    num_kv_heads, group = k.shape[0], num_q_heads // k.shape[0]
    by_head = (num_kv_heads * num_rows, -1)
    queries = (q * scale).reshape(num_rows, num_kv_heads, group, k_dim).transpose(0, 1).reshape(*by_head, k_dim)
    scores = torch.bmm(queries, k.reshape(*by_head, k_dim).transpose(1, 2)).view(num_kv_heads, num_rows, group, -1)
    length = scores.shape[-1]
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    if hidden is not None:
        scores.masked_fill_(hidden[:, None, :], HIDDEN)
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(num_kv_heads, 1, group, 1).expand(-1, num_rows, -1, -1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :length]
    out = torch.bmm(weights.reshape(*by_head, length), v.reshape(*by_head, v.shape[2]))
    return out.view(num_kv_heads, num_rows, group, -1).transpose(0, 1).reshape(num_rows, num_q_heads, -1)
