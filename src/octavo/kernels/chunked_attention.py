"""Causal attention of one sequence whose rows do not depend on one another, bit for bit.

A row's result is the same whether it is computed alone or among others, after a whole or a chunked prefill, and
whatever storage the keys came from, because
  * keys are cut at absolute multiples of KEY_CHUNK, and a chunk is always computed at its full width;
  * chunks are merged by their log-sum-exp in position order, and one that a row cannot see has weight 0;
  * products have at least `min_rows` rows: below that, BLAS libraries take other instructions and another order;
  * everything is float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.attention_parts import MOST_SCORES

KEY_CHUNK = 256
MAX_SCORES = 1 << 21  # float32 scores held at once: 8 MiB
_TOKENS_PER_TILE = 128
_TOKENS_OF_A_DEVICE = 512
_SAFE_ROWS = 16

# What a hidden score becomes: far below any real one, so its weight is exactly 0, yet finite, so that a chunk which
# a row cannot see at all yields a finite partial result (of weight 0) and no NaN.
HIDDEN = -1e30


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Consecutive query rows `[start, stop)` of a sequence's step, and the keys that each of them may not see.

    The rows see nothing outside keys `[first_key, last_key)` of the span (multiples of KEY_CHUNK, counted from the
    span's first). `hidden` [stop - start, 1, last_key - first_key] bool, or None where every row sees all of them.
    """

    start: int
    stop: int
    first_key: int
    last_key: int
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


def bare_span(start: int, stop: int, window: int | None) -> AttentionSpan:
    """The keys that queries at positions `[start, stop)` attend to, without tiles."""
    lo = 0 if window is None else max(0, start - window + 1)
    first_key = lo // KEY_CHUNK * KEY_CHUNK
    return AttentionSpan(lo, stop, first_key, -(-(stop - first_key) // KEY_CHUNK) * KEY_CHUNK, ())


def plan_span(start: int, stop: int, *, num_q_heads: int, window: int | None, device: torch.device) -> AttentionSpan:
    """Span and tiles for queries at positions `[start, stop)` of a sequence whose keys end at `stop`."""
    bare = bare_span(start, stop, window)
    lo, first_key, length = bare.lo, bare.first_key, bare.length
    if stop - start == 1:
        # One row: it sees [lo, hi), so the mask needs no positions.
        hidden = torch.ones(1, 1, length, dtype=torch.bool, device=device)
        hidden[:, :, lo - first_key : stop - first_key] = False
        whole = stop - lo == length
        tile = QueryTile(0, 1, 0, length, None if whole else hidden)
        return AttentionSpan(lo, stop, first_key, length, (tile,))
    # Elsewhere a launch costs more than a small tile, and there is memory.
    most, scores = (_TOKENS_PER_TILE, MAX_SCORES) if device.type == "cpu" else (_TOKENS_OF_A_DEVICE, MOST_SCORES)
    tokens = max(1, min(most, scores // (num_q_heads * length)))
    tiles = []
    for q0 in range(start, stop, tokens):
        q1 = min(stop, q0 + tokens)
        tile_lo = 0 if window is None else max(0, q0 - window + 1)
        k0, k1 = tile_lo // KEY_CHUNK * KEY_CHUNK, -(-q1 // KEY_CHUNK) * KEY_CHUNK
        q_position = torch.arange(q0, q1, device=device)[:, None]
        k_position = torch.arange(k0, k1, device=device)[None, :]
        hidden = k_position > q_position
        if window is not None:
            hidden |= k_position <= q_position - window
        tiles.append(QueryTile(q0 - start, q1 - start, k0 - first_key, k1 - first_key, hidden[:, None, :]))
    return AttentionSpan(lo, stop, first_key, length, tuple(tiles))


def attend_span(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    span: AttentionSpan,
    *,
    scale: float,
    softcap: float | None,
    min_rows: int,
    sinks: Tensor | None = None,
    in_chunks: bool = True,
) -> Tensor:
    """Attention of q [T, Hq, Dk] over k [Hkv, span.length, Dk] and v [Hkv, span.length, Dv]; all float32.

    `sinks` [Hq] are learned logits that join each softmax and add no value. Rows of v outside `[lo, hi)` must be
    finite (their weight is zero); rows of k there may hold anything.
    Without `in_chunks` a tile's keys have one softmax: fewer launches, and bits that are not a row's own.
    Returns [T, Hq, Dv] float32. Equals `reference.attention`; the sums differ only in their order.
    """
    if len(span.tiles) == 1:
        return _attend_tile(q, k, v, span.tiles[0].hidden, scale, softcap, min_rows, sinks, in_chunks)
    parts = []
    for tile in span.tiles:
        keys, values = k[:, tile.first_key : tile.last_key], v[:, tile.first_key : tile.last_key]
        query = q[tile.start : tile.stop]
        parts.append(_attend_tile(query, keys, values, tile.hidden, scale, softcap, min_rows, sinks, in_chunks))
    return torch.cat(parts)


def _attend_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor | None,
    scale: float,
    softcap: float | None,
    min_rows: int,
    sinks: Tensor | None,
    in_chunks: bool,
) -> Tensor:
    num_tokens, num_q_heads, k_dim = q.shape
    num_kv_heads, length, v_dim = v.shape
    num_rows = num_tokens * num_q_heads // num_kv_heads
    # Query heads that share a K/V head become rows of one matrix: [Hkv, T * G, Dk].
    rows = q * scale
    if num_tokens == 1:
        rows = rows.view(num_kv_heads, num_rows, k_dim)
    else:
        rows = rows.view(num_tokens, num_kv_heads, -1, k_dim).transpose(0, 1).reshape(num_kv_heads, num_rows, k_dim)
    if num_rows < min_rows:
        rows = torch.cat((rows, rows.new_zeros(num_kv_heads, min_rows - num_rows, k_dim)), dim=1)
    scores = torch.bmm(rows, k.transpose(1, 2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    if hidden is not None:
        if num_tokens == 1:
            scores.masked_fill_(hidden, HIDDEN)
        else:
            real = scores[:, :num_rows].view(num_kv_heads, num_tokens, -1, length)
            real.masked_fill_(hidden, HIDDEN)
    of_rows = None if sinks is None else _sinks_of_rows(sinks, num_kv_heads, num_tokens, scores.shape[1])
    if not in_chunks:
        weighed = scores if of_rows is None else torch.cat((scores, of_rows), dim=-1)
        out = torch.bmm(torch.softmax(weighed, dim=-1)[..., :length], v)
    elif of_rows is None and length == KEY_CHUNK:
        out = _one_chunk(scores, v)
    else:
        out = _merge_chunks(scores, v, of_rows)
    if num_tokens == 1:
        return out[:, :num_rows].reshape(1, num_q_heads, v_dim)
    out = out[:, :num_rows].view(num_kv_heads, num_tokens, -1, v_dim)
    return out.transpose(0, 1).reshape(num_tokens, num_q_heads, v_dim)


def _sinks_of_rows(sinks: Tensor, num_kv_heads: int, num_tokens: int, num_rows: int) -> Tensor:
    """sinks [Hq] as [Hkv, R, 1]: the query heads of a K/V head, once per token, then whatever for rows of padding."""
    by_row = sinks.view(num_kv_heads, 1, -1).expand(-1, num_tokens, -1).reshape(num_kv_heads, -1, 1)
    return F.pad(by_row, (0, 0, 0, num_rows - by_row.shape[1]))


def _one_chunk(scores: Tensor, v: Tensor) -> Tensor:
    """scores [Hkv, R, KEY_CHUNK] and v [Hkv, KEY_CHUNK, Dv] -> [Hkv, R, Dv].

    `_merge_chunks` where only one chunk is seen, whose weight is 1: the same bits, fewer steps.
    """
    return torch.bmm(torch.softmax(scores, dim=-1), v)


def _merge_chunks(scores: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
    """scores [Hkv, R, C * KEY_CHUNK] and v [Hkv, C * KEY_CHUNK, Dv] -> [Hkv, R, Dv].

    Each chunk on its own, then a sum weighted by exp(log-sum-exp), as split-K/V decoding does. A logit of
    sinks [Hkv, R, 1] takes its part of the weight.
    """
    num_kv_heads, num_rows, length = scores.shape
    num_chunks = length // KEY_CHUNK
    chunks = scores.view(num_kv_heads, num_rows, num_chunks, KEY_CHUNK)
    weights = torch.softmax(chunks, dim=-1)
    # The largest weight is exp(largest score - log-sum-exp).
    log_sums = chunks.amax(-1) - weights.amax(-1).log_()  # [Hkv, R, C]
    by_chunk = weights.transpose(1, 2).reshape(num_kv_heads * num_chunks, num_rows, KEY_CHUNK)
    partial = torch.bmm(by_chunk, v.reshape(num_kv_heads * num_chunks, KEY_CHUNK, v.shape[2]))
    largest = log_sums.amax(-1, keepdim=True)
    if sinks is not None:
        largest = torch.maximum(largest, sinks)
    merge = torch.exp(log_sums - largest)
    total = merge.cumsum(-1)[..., -1:]
    if sinks is not None:
        total = total + torch.exp(sinks - largest)
    # cumsum adds in chunk order for every row, so that chunks of weight 0 change nothing wherever they lie.
    partial = partial.view(num_kv_heads, num_chunks, num_rows, -1).mul_(merge.transpose(1, 2).unsqueeze(-1))
    return partial.cumsum(1)[:, -1].div_(total)


@cache
def smallest_invariant_rows(num_kv_heads: int, group: int, k_dim: int, v_dim: int, num_threads: int) -> int:
    """Fewest rows at which both products give the bits of a large one, tried on this machine's BLAS.

    `group` (query heads per K/V head) is the fewest that a step ever has. `num_threads` only keys the result.
    """
    del num_threads
    for rows in (group, 8, _SAFE_ROWS, 32):
        if rows >= group and _rows_are_invariant(num_kv_heads, rows, k_dim, v_dim):
            return rows
    return 64


def _rows_are_invariant(num_kv_heads: int, rows: int, k_dim: int, v_dim: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    many = 5 * 64
    q = torch.randn(num_kv_heads, many, k_dim, generator=generator)
    k = torch.randn(num_kv_heads, 2 * KEY_CHUNK, k_dim, generator=generator)
    w = torch.rand(num_kv_heads, many, KEY_CHUNK, generator=generator)
    v = torch.randn(num_kv_heads, KEY_CHUNK, v_dim, generator=generator)
    scores, out = torch.bmm(q, k.transpose(1, 2)), torch.bmm(w, v)
    for count in {*range(rows, rows + 34), 2 * rows, 3 * rows, 64, 100, 192}:
        part = slice(3, 3 + count)
        for width in (KEY_CHUNK, 2 * KEY_CHUNK):
            narrow = torch.bmm(q[:, part].contiguous(), k[:, :width].transpose(1, 2))
            if not torch.equal(narrow, scores[:, part, :width]):
                return False
        if not torch.equal(torch.bmm(w[:, part].contiguous(), v), out[:, part]):
            return False
    return True
