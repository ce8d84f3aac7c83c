"""Draws of whole rows in one reading of their logits: temperature, min-p, and noise as in `engine/sampling_random.py`.

Filters that rank tokens (top-k, top-p) and everything that is done to logits before are the caller's.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

LARGEST_ID = tl.constexpr(2147483647)
# int64, as two's complement: the multipliers of the noise's mixing function.
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
_SECOND = tl.constexpr(0x94D049BB133111EB - 2**64)


@triton.jit
def gumbel(hashes, key, FAST: tl.constexpr):
    """Standard Gumbel noise, float32, of token hashes int64 and a row's key: bit for bit what `TokenNoise` computes."""
    x = (hashes ^ key) * _FIRST
    x = (x ^ ((x >> 32) & 0xFFFFFFFF)) * _SECOND
    v = ((x >> 11) & ((1 << 53) - 1)).to(tl.float32) * 1.1102230246251565e-16
    v = tl.minimum(tl.maximum(v, 5.551115123125783e-17), 0.9999999403953552)
    if FAST:
        return -libdevice.log(-libdevice.log1p(-v))
    # log1p by its series where 1 - v would round much of v away.
    exact = tl.where(v < 0.01, -v * (1 + v * (0.5 + v * (0.33333333 + v * (0.25 + v * 0.2)))), tl.log(1.0 - v))
    return -tl.log(-exact)


@triton.jit
def row_scale(best_ptr, temperatures_ptr, row, PARTS: tl.constexpr):
    """What a row's logits are less and divided by.

    What comes of a row that is unsound, or that takes the best, is thrown away; it is still to be a number.
    """
    best = tl.max(tl.load(best_ptr + row * PARTS + tl.arange(0, PARTS)), 0)
    temperature = tl.load(temperatures_ptr + row)
    sound = (best > float("-inf")) & (best < float("inf"))
    return tl.where(sound, best, 0.0), tl.where(temperature > 0, temperature, 1.0)


@triton.jit
def draw_parts(
    logits_ptr,
    best_ptr,
    hashes_ptr,
    keys_ptr,
    temperatures_ptr,
    floors_ptr,
    score_ptr,
    ids_ptr,
    vocab_size,
    stride,
    PARTS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    FAST: tl.constexpr,
):
    """Grid (rows, PARTS): of SIZE tokens the one whose (logit - best) / temperature plus noise is largest.

    `best` [rows, PARTS] are the parts' largest logits. Tokens whose scaled logit is below the row's floor are left out.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    best, temperature = row_scale(best_ptr, temperatures_ptr, row, PARTS)
    key = tl.load(keys_ptr + row)
    floor = tl.load(floors_ptr + row)
    i = part * SIZE + tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    ids = tl.full([BLOCK], 0, tl.int32) + i.to(tl.int32)
    for start in tl.range(0, SIZE, BLOCK):
        at = i + start
        there = (at < vocab_size) & (at < (part + 1) * SIZE)
        x = tl.load(logits_ptr + row * stride + at, mask=there, other=float("-inf"))
        z = tl.div_rn(x - best, tl.zeros([BLOCK], tl.float32) + temperature)
        score = gumbel(tl.load(hashes_ptr + at, mask=there, other=0), key, FAST) + z
        score = tl.where(there & (z >= floor), score, float("-inf"))
        better = score > top  # of equals the first one stays
        top = tl.where(better, score, top)
        ids = tl.where(better, at.to(tl.int32), ids)
    largest = tl.max(top, 0)
    tl.store(score_ptr + row * PARTS + part, largest)
    tl.store(ids_ptr + row * PARTS + part, tl.min(tl.where(top == largest, ids, LARGEST_ID), 0))


@triton.jit
def drawn_rows(
    token_ids_ptr,
    score_ptr,
    ids_ptr,
    best_ptr,
    best_ids_ptr,
    temperatures_ptr,
    limits_ptr,
    shares_ptr,
    ranked_ids_ptr,
    vocab_size,
    PARTS: tl.constexpr,
    RANKED: tl.constexpr,
):
    """Grid (rows,): the token drawn, from `ranked_ids` where a filter ranks tokens; where the temperature is 0 the best
    one; -1 where the best logit is not finite."""
    row = tl.program_id(0).to(tl.int64)
    i = row * PARTS + tl.arange(0, PARTS)
    best = tl.load(best_ptr + i)
    top = tl.max(best, 0)
    first = tl.min(tl.where(best == top, tl.load(best_ids_ptr + i), LARGEST_ID), 0)
    score = tl.load(score_ptr + i)
    drawn = tl.min(tl.where(score == tl.max(score, 0), tl.load(ids_ptr + i), LARGEST_ID), 0)
    if RANKED:
        ranked = (tl.load(limits_ptr + row) < vocab_size) | (tl.load(shares_ptr + row) < 1.0)
        drawn = tl.where(ranked, tl.load(ranked_ids_ptr + row), drawn)
    token = tl.where(tl.load(temperatures_ptr + row) > 0, drawn, first)
    sound = (top > float("-inf")) & (top < float("inf"))
    tl.store(token_ids_ptr + row, tl.where(sound, token, -1).to(tl.int64))
