"""Causal attention of one sequence whose rows do not depend on one another, bit for bit.

A row's result is the same whether it is computed alone or among others, after a whole or a chunked prefill, and
whatever storage the keys came from, because
  * keys are cut at absolute multiples of KEY_CHUNK, and a chunk is always computed at its full width;
  * a chunk that a row cannot see leaves its sums unchanged: weight 0, added last or first;
  * matrices have at least MIN_ROWS rows: below that, BLAS libraries take other instructions and another order;
  * everything is float32 and sums over chunks run in position order (`cumsum`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

KEY_CHUNK = 256
MIN_ROWS = 16
MAX_SCORES = 1 << 21  # float32 scores held at once: 8 MiB

_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Consecutive query rows `[start, stop)` of a sequence's step, and the keys that none of them may see.

    `hidden` [stop - start, 1, S] bool, or None where every row sees every key of the span.
    """

    start: int
    stop: int
    hidden: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Which keys one sequence's step attends to, and how its queries are tiled. Built once per step and group.

        key positions   first_key ... lo ........................ hi ... first_key + length
                        |  no key   |  real keys, in position order |  no key  |

    `first_key` and `length` are multiples of KEY_CHUNK.
    """

    lo: int
    hi: int
    first_key: int
    length: int
    tiles: tuple[QueryTile, ...]


def plan_span(start: int, stop: int, *, num_q_heads: int, window: int | None, device: torch.device) -> AttentionSpan:
    """Span and tiles for queries at positions `[start, stop)` of a sequence whose keys end at `stop`."""
    lo = 0 if window is None else max(0, start - window + 1)
    first_key = lo // KEY_CHUNK * KEY_CHUNK
    length = -(-(stop - first_key) // KEY_CHUNK) * KEY_CHUNK
    rows_per_tile = max(1, min(128, MAX_SCORES // (num_q_heads * length)))
    k_position = torch.arange(first_key, first_key + length, device=device)
    tiles = []
    for q0 in range(start, stop, rows_per_tile):
        q1 = min(stop, q0 + rows_per_tile)
        q_position = torch.arange(q0, q1, device=device)[:, None]
        hidden = k_position[None, :] > q_position
        if window is not None:
            hidden |= k_position[None, :] <= q_position - window
        everything_seen = q1 - q0 == 1 and q0 == first_key + length - 1 and lo == first_key
        tiles.append(QueryTile(q0 - start, q1 - start, None if everything_seen else hidden[:, None, :]))
    return AttentionSpan(lo, stop, first_key, length, tuple(tiles))


def attend_span(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    span: AttentionSpan,
    *,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """Attention of q [T, Hq, Dk] over k [Hkv, span.length, Dk] and v [Hkv, span.length, Dv]; all float32.

    Rows of v outside `[lo, hi)` must be finite (their weight is zero); rows of k there may hold anything.
    Returns [T, Hq, Dv] float32. Equals `reference.attention`; the sums differ only in their order.
    """
    num_tokens, num_q_heads, _ = q.shape
    out = q.new_empty(num_tokens, num_q_heads, v.shape[2])
    for tile in span.tiles:
        rows = q[tile.start : tile.stop]
        out[tile.start : tile.stop] = _attend_tile(rows, k, v, tile.hidden, scale, softcap)
    return out


def _attend_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    num_tokens, num_q_heads, k_dim = q.shape
    num_kv_heads, length, _ = k.shape
    group = num_q_heads // num_kv_heads
    num_rows = num_tokens * group
    # Query heads that share a K/V head become rows of one matrix: [Hkv, T * G, Dk].
    rows = (q * scale).view(num_tokens, num_kv_heads, group, k_dim).transpose(0, 1)
    if num_rows < MIN_ROWS:
        padded = q.new_zeros(num_kv_heads, MIN_ROWS, k_dim)
        padded[:, :num_rows].copy_(rows.reshape(num_kv_heads, num_rows, k_dim))
        scores = torch.bmm(padded, k.transpose(1, 2))
    else:
        scores = torch.bmm(rows.reshape(num_kv_heads, num_rows, k_dim), k.transpose(1, 2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    if hidden is not None:
        real = scores[:, :num_rows].view(num_kv_heads, num_tokens, group, length)
        real.masked_fill_(hidden, float("-inf"))
    num_chunks = length // KEY_CHUNK
    if num_chunks == 1:
        return _one_chunk(scores, v, num_tokens, num_rows, num_q_heads)
    return _merge_chunks(scores, v, num_tokens, num_rows, num_q_heads)


def _one_chunk(scores: Tensor, v: Tensor, num_tokens: int, num_rows: int, num_q_heads: int) -> Tensor:
    """`_merge_chunks` where there is one chunk, whose merge weight is exp(0) = 1: the same bits, fewer steps."""
    weights = scores.sub_(scores.amax(-1, keepdim=True).clamp_(min=_LOWEST)).exp_()
    out = torch.bmm(weights, v).div_(weights.sum(-1, keepdim=True))
    return _by_token(out, num_tokens, num_rows, num_q_heads)


def _merge_chunks(scores: Tensor, v: Tensor, num_tokens: int, num_rows: int, num_q_heads: int) -> Tensor:
    num_kv_heads, padded_rows, length = scores.shape
    num_chunks = length // KEY_CHUNK
    chunks = scores.view(num_kv_heads, padded_rows, num_chunks, KEY_CHUNK)
    maxima = chunks.amax(-1).clamp_(min=_LOWEST)  # a chunk that a row cannot see: -inf -> lowest, its exps are 0
    weights = chunks.sub_(maxima.unsqueeze(-1)).exp_()
    sums = weights.sum(-1)  # [Hkv, R, C]
    by_chunk = weights.transpose(1, 2).reshape(num_kv_heads * num_chunks, padded_rows, KEY_CHUNK)
    partial = torch.bmm(by_chunk, v.reshape(num_kv_heads * num_chunks, KEY_CHUNK, v.shape[2]))
    partial = partial.view(num_kv_heads, num_chunks, padded_rows, v.shape[2])
    highest = maxima.amax(-1, keepdim=True)
    merge = torch.exp(maxima - highest)  # [Hkv, R, C]
    # cumsum adds in chunk order for every row, so trailing chunks of weight 0 change nothing.
    total = (sums * merge).cumsum(-1)[..., -1:]
    out = partial.mul_(merge.transpose(1, 2).unsqueeze(-1)).cumsum(1)[:, -1]
    return _by_token(out / total, num_tokens, num_rows, num_q_heads)


def _by_token(out: Tensor, num_tokens: int, num_rows: int, num_q_heads: int) -> Tensor:
    """[Hkv, R, Dv] with R = (token, query head of the group) -> [T, Hq, Dv]."""
    num_kv_heads, _, v_dim = out.shape
    group = num_q_heads // num_kv_heads
    out = out[:, :num_rows].reshape(num_kv_heads, num_tokens, group, v_dim)
    return out.transpose(0, 1).reshape(num_tokens, num_q_heads, v_dim)
