"""Token ids at both ends of a decode step that stays on its device: which go in, and which are the best to come out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pick_tokens(token_ids_ptr, given_ptr, sources_ptr, drawn_ptr, rows, BLOCK: tl.constexpr):
    """One program. Row i goes on with `given[i]`, or with what was drawn last at `sources[i]` where that is 0 or more.

    One that was drawn in error (-1) becomes any token.
    """
    i = tl.arange(0, BLOCK)
    there = i < rows
    source = tl.load(sources_ptr + i, mask=there, other=-1)
    given = tl.load(given_ptr + i, mask=there, other=0)
    drawn = tl.load(drawn_ptr + tl.maximum(source, 0), mask=there, other=0)
    tl.store(token_ids_ptr + i, tl.maximum(tl.where(source < 0, given, drawn), 0), mask=there)


@triton.jit
def best_of_parts(
    logits_ptr, best_ptr, ids_ptr, vocab_size, stride, PARTS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (rows, PARTS): the largest of SIZE logits and the lowest id that has it; NaN counts as infinite."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    i = part * SIZE + tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    ids = tl.full([BLOCK], 0, tl.int32) + i.to(tl.int32)
    for start in tl.range(0, SIZE, BLOCK):
        at = i + start
        there = (at < vocab_size) & (at < (part + 1) * SIZE)
        x = tl.load(logits_ptr + row * stride + at, mask=there, other=float("-inf"))
        x = tl.where(x != x, float("inf"), x)
        better = x > best  # of equals the first one stays
        best = tl.where(better, x, best)
        ids = tl.where(better, at.to(tl.int32), ids)
    top = tl.max(best, 0)
    first = tl.min(tl.where(best == top, ids, 2147483647), 0)
    tl.store(best_ptr + row * PARTS + part, top)
    tl.store(ids_ptr + row * PARTS + part, first)


@triton.jit
def best_of_rows(token_ids_ptr, best_ptr, ids_ptr, PARTS: tl.constexpr):
    """Grid (rows,): the best of all parts, -1 where that is not finite."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PARTS)
    best = tl.load(best_ptr + row * PARTS + i)
    ids = tl.load(ids_ptr + row * PARTS + i)
    top = tl.max(best, 0)
    first = tl.min(tl.where(best == top, ids, 2147483647), 0)
    sound = (top > float("-inf")) & (top < float("inf"))
    tl.store(token_ids_ptr + row, tl.where(sound, first, -1).to(tl.int64))
