"""Draws from the best tokens of a row: min-p, top-k and top-p as in `engine/sampling_filters.py`, without a sort.

Tokens near the top of a row are listed; where the last one that a filter keeps is among them, the list is all there is
to look at. A row that needs more is looked through again and again by `draw_from_row`, which is slow and as exact.
All sums are over integers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from octavo.kernels.triton.sampling import LARGEST_ID, gumbel, row_scale

BINS = tl.constexpr(256)
_PER_UNIT = tl.constexpr(8)  # bins per unit of a scaled logit; the last but one has all that are lower
_ID_BITS = tl.constexpr(20)
_KEY_BITS = tl.constexpr(51)


@triton.jit
def _bin(z, kept):
    """The bin of scaled logits, 0 for the best; the last one for what is not kept."""
    return tl.where(kept, tl.maximum(tl.minimum(-z * _PER_UNIT, BINS - 2.0), 0.0), BINS - 1.0).to(tl.int32)


@triton.jit
def _weight(z, FAST: tl.constexpr):
    """exp(z) in units of 2^-40, int64."""
    return ((libdevice.exp(z) if FAST else tl.exp(z)) * 1099511627776.0).to(tl.int64)


@triton.jit
def _key(z, ids):
    """int64: less for a better token, of equals for the lower id."""
    return (tl.abs(z).to(tl.int32, bitcast=True).to(tl.int64) << _ID_BITS) | ids.to(tl.int64)


@triton.jit
def _target(total, share):
    """The weight that top-p asks for of `total`."""
    return tl.minimum(tl.maximum(tl.ceil(total.to(tl.float64) * share).to(tl.int64), 1), total)


@triton.jit
def count_bins(
    logits_ptr,
    best_ptr,
    temperatures_ptr,
    floors_ptr,
    counts_ptr,
    totals_ptr,
    vocab_size,
    stride,
    PARTS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    FAST: tl.constexpr,
):
    """Grid (rows, PARTS): how many tokens of a part are in each bin, and what all that are kept by min-p weigh."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    best, temperature = row_scale(best_ptr, temperatures_ptr, row, PARTS)
    floor = tl.load(floors_ptr + row)
    counts = tl.zeros([BINS], tl.int32)
    total = tl.zeros([BLOCK], tl.int64)
    i = part * SIZE + tl.arange(0, BLOCK)
    for start in tl.range(0, SIZE, BLOCK):
        at = i + start
        there = (at < vocab_size) & (at < (part + 1) * SIZE)
        x = tl.load(logits_ptr + row * stride + at, mask=there, other=float("-inf"))
        z = tl.maximum(tl.div_rn(x - best, temperature + tl.zeros([BLOCK], tl.float32)), -1e30)
        kept = there & (z >= floor) & (x > float("-inf"))
        counts += tl.histogram(_bin(z, kept), BINS)
        total += tl.where(kept, _weight(z, FAST), 0)
    tl.store(counts_ptr + (row * PARTS + part) * BINS + tl.arange(0, BINS), counts)
    tl.store(totals_ptr + row * PARTS + part, tl.sum(total, 0))


@triton.jit
def choose_bins(counts_ptr, last_bin_ptr, offsets_ptr, listed_ptr, PARTS: tl.constexpr, CAPACITY: tl.constexpr):
    """Grid (rows,): the last bin up to which tokens fit into a list, where each part's begin in it, and how many are
    listed and kept by min-p in all: `listed` [rows, 2]."""
    row = tl.program_id(0).to(tl.int64)
    bins = tl.arange(0, BINS)
    parts = tl.arange(0, PARTS)
    counts = tl.load(counts_ptr + row * PARTS * BINS + parts[:, None] * BINS + bins[None, :])
    counts = tl.where((bins < BINS - 1)[None, :], counts, 0)
    up_to = tl.cumsum(tl.sum(counts, 0), 0)
    fits = (up_to <= CAPACITY) & (bins < BINS - 1)
    last = tl.sum(fits.to(tl.int32), 0) - 1
    each = tl.sum(tl.where((bins <= last)[None, :], counts, 0), 1)
    tl.store(last_bin_ptr + row, last)
    tl.store(offsets_ptr + row * PARTS + parts, tl.cumsum(each, 0) - each)
    tl.store(listed_ptr + row * 2, tl.sum(each, 0))
    tl.store(listed_ptr + row * 2 + 1, tl.sum(tl.sum(counts, 1), 0))


@triton.jit
def list_tokens(
    logits_ptr,
    best_ptr,
    temperatures_ptr,
    floors_ptr,
    last_bin_ptr,
    offsets_ptr,
    list_z_ptr,
    list_id_ptr,
    vocab_size,
    stride,
    PARTS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Grid (rows, PARTS): list the tokens of the bins that fit, by id."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    best, temperature = row_scale(best_ptr, temperatures_ptr, row, PARTS)
    floor = tl.load(floors_ptr + row)
    last = tl.load(last_bin_ptr + row)
    place = row * CAPACITY + tl.load(offsets_ptr + row * PARTS + part)
    i = part * SIZE + tl.arange(0, BLOCK)
    for start in tl.range(0, SIZE, BLOCK):
        at = i + start
        there = (at < vocab_size) & (at < (part + 1) * SIZE)
        x = tl.load(logits_ptr + row * stride + at, mask=there, other=float("-inf"))
        z = tl.maximum(tl.div_rn(x - best, temperature + tl.zeros([BLOCK], tl.float32)), -1e30)
        member = _bin(z, there & (z >= floor) & (x > float("-inf"))) <= last
        count = member.to(tl.int32)
        to = place + tl.cumsum(count, 0) - count
        tl.store(list_z_ptr + to, z, mask=member)
        tl.store(list_id_ptr + to, at.to(tl.int32), mask=member)
        place += tl.sum(count, 0)


@triton.jit
def draw_from_list(
    list_z_ptr,
    list_id_ptr,
    listed_ptr,
    totals_ptr,
    limits_ptr,
    shares_ptr,
    hashes_ptr,
    keys_ptr,
    token_ids_ptr,
    unfinished_ptr,
    vocab_size,
    PARTS: tl.constexpr,
    CAPACITY: tl.constexpr,
    FAST: tl.constexpr,
):
    """Grid (rows,): draw a row's token from its list, or say that it has to be drawn from the row."""
    row = tl.program_id(0).to(tl.int64)
    num_listed, num_kept = tl.load(listed_ptr + row * 2), tl.load(listed_ptr + row * 2 + 1)
    limit, share = tl.load(limits_ptr + row), tl.load(shares_ptr + row)
    i = tl.arange(0, CAPACITY)
    there = i < num_listed
    z = tl.load(list_z_ptr + row * CAPACITY + i, mask=there, other=-1e30)
    ids = tl.load(list_id_ptr + row * CAPACITY + i, mask=there, other=0)
    order = _key(z, ids)
    limited = limit < vocab_size
    limit = tl.minimum(limit, num_kept)
    short = limited & (limit > num_listed)
    if limited:
        bound = tl.full([], 0, tl.int64)
        for place in range(_KEY_BITS):
            step = tl.full([], 1, tl.int64) << (_KEY_BITS - 1 - place)
            # The largest bound that fewer than `limit` tokens are below of: that of the last token kept.
            below = tl.sum((there & (order < bound + step)).to(tl.int32), 0)
            bound = tl.where(below < limit, bound + step, bound)
        there = there & (order <= bound)
    weights = tl.where(there, _weight(z, FAST), 0)
    listed_weight = tl.sum(weights, 0)
    if share < 1.0:
        total = listed_weight
        if not limited:
            total = tl.sum(tl.load(totals_ptr + row * PARTS + tl.arange(0, PARTS)), 0)
        target = _target(total, share)
        short = short | (listed_weight < target)
        bound = tl.full([], 0, tl.int64)
        for place in range(_KEY_BITS):
            step = tl.full([], 1, tl.int64) << (_KEY_BITS - 1 - place)
            below = tl.sum(tl.where(order < bound + step, weights, 0), 0)
            bound = tl.where(below < target, bound + step, bound)
        there = there & (order <= bound)
    score = gumbel(tl.load(hashes_ptr + ids), tl.load(keys_ptr + row), FAST) + z
    score = tl.where(there, score, float("-inf"))
    token = tl.min(tl.where(there & (score == tl.max(score, 0)), ids, LARGEST_ID), 0)
    tl.store(token_ids_ptr + row, token)
    tl.store(unfinished_ptr + row, (short & (limited | (share < 1.0))).to(tl.int32))


@triton.jit
def draw_from_row(
    logits_ptr,
    best_ptr,
    temperatures_ptr,
    floors_ptr,
    limits_ptr,
    shares_ptr,
    listed_ptr,
    hashes_ptr,
    keys_ptr,
    token_ids_ptr,
    unfinished_ptr,
    vocab_size,
    stride,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    FAST: tl.constexpr,
):
    """Grid (rows,): draw the tokens of unfinished rows, going through the whole row for each bit of a token's rank."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(unfinished_ptr + row) == 0:
        return
    best, temperature = row_scale(best_ptr, temperatures_ptr, row, PARTS)
    floor = tl.load(floors_ptr + row)
    limit, share = tl.load(limits_ptr + row), tl.load(shares_ptr + row)
    num_kept = tl.load(listed_ptr + row * 2 + 1)
    # A rule that keeps all that are left is passed over.
    first_rule = tl.where(limit < num_kept, 0, 1)
    end_rule = tl.where(share < 1.0, 2, 1)
    limit = tl.minimum(limit, num_kept).to(tl.int64)
    i = tl.arange(0, BLOCK)
    # Counts first, then weights: what is below a bound, until the bound is the last token that is kept.
    counted = tl.full([], 1, tl.int64) << _KEY_BITS
    weighed = counted
    target = limit
    for rule in range(first_rule, end_rule):
        bound = tl.full([], 0, tl.int64)
        # The first look at weights is only for their sum.
        for place in range(-1, _KEY_BITS):
            step = tl.full([], 1, tl.int64) << tl.where(place < 0, _KEY_BITS, _KEY_BITS - 1 - place)
            below = tl.zeros([BLOCK], tl.int64)
            for start in range(0, vocab_size, BLOCK):
                at = start + i
                x = tl.load(logits_ptr + row * stride + at, mask=at < vocab_size, other=float("-inf"))
                z = tl.maximum(tl.div_rn(x - best, temperature + tl.zeros([BLOCK], tl.float32)), -1e30)
                order = _key(z, at)
                kept = (z >= floor) & (x > float("-inf")) & (order <= counted) & (order < bound + step)
                below += tl.where(kept, tl.where(rule == 0, 1, _weight(z, FAST)), 0)
            sum_below = tl.sum(below, 0)
            if place < 0:
                target = tl.where(rule == 0, limit, _target(sum_below, share))
            else:
                bound = tl.where(sum_below < target, bound + step, bound)
        counted = tl.where(rule == 0, bound, counted)
        weighed = tl.where(rule == 1, bound, weighed)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    ids = tl.full([BLOCK], 0, tl.int32)
    key = tl.load(keys_ptr + row)
    for start in range(0, vocab_size, BLOCK):
        at = start + i
        x = tl.load(logits_ptr + row * stride + at, mask=at < vocab_size, other=float("-inf"))
        z = tl.maximum(tl.div_rn(x - best, temperature + tl.zeros([BLOCK], tl.float32)), -1e30)
        order = _key(z, at)
        kept = (z >= floor) & (x > float("-inf")) & (order <= counted) & (order <= weighed)
        score = gumbel(tl.load(hashes_ptr + at, mask=at < vocab_size, other=0), key, FAST) + z
        better = kept & (score > top)
        top = tl.where(better, score, top)
        ids = tl.where(better, at, ids)
    tl.store(token_ids_ptr + row, tl.min(tl.where(top == tl.max(top, 0), ids, LARGEST_ID), 0))
