"""Attention over more positions than a part: right, and the same bits whoever computes which part and beside what."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from octavo.kernels.cpu import library
from octavo.kernels.cpu.attention import AttentionStep
from tests.kernels.cpu.attention_cases import Heads, Storage, assert_is_the_definition, attend, store_steps

PART = 256
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CASES = {
    "full": Heads(9, 3, 64, 64),
    "one K/V head, capped": Heads(4, 1, 256, 128, None, 20.0),
    "window of a part": Heads(14, 2, 64, 64, PART),
    "wide window": Heads(8, 2, 80, 48, 600),
    "narrow window": Heads(32, 1, 32, 32, 40),
}
every_case = pytest.mark.parametrize("heads", CASES.values(), ids=CASES)


@pytest.mark.parametrize("dtype", DTYPES)
@every_case
def test_equals_the_float64_definition_where_parts_meet(heads, dtype):
    for start, num_tokens in ((PART - 2, 4), (PART, 1), (2 * PART - 1, 1), (3 * PART - 5, 40), (1000, 2)):
        assert_is_the_definition(heads, start, num_tokens, dtype=DTYPES[dtype], kind="blocks16")
        assert_is_the_definition(
            heads, start, num_tokens, dtype=DTYPES[dtype], sinks=torch.linspace(-6, 9, heads.num_q)
        )


@pytest.mark.parametrize("num_tokens", [1, 2, 7])
@every_case
def test_threads_that_share_the_parts_of_a_sequence_change_no_bit(heads, num_tokens):
    start = 4 * PART - 3
    q, k, v = heads.draw(start + num_tokens)
    for sinks in (None, torch.linspace(-6, 9, heads.num_q)):
        alone = attend(heads, q[start:], k, v, start, dtype=torch.float16, sinks=sinks)
        for threads in (2, 3, 5):
            library.set_threads(threads)
            shared = attend(heads, q[start:], k, v, start, "blocks32", torch.float16, sinks=sinks)
            assert torch.equal(shared, alone), f"{threads} threads"
        library.set_threads(1)


STEPS = [(5, 1), (1500, 1), (0, 300), (PART - 1, 2), (700, 3), (2 * PART, 1), (90, 1), (3 * PART - 1, 1)]


@every_case
def test_sequences_of_all_lengths_computed_together_give_the_bits_of_each_alone(heads):
    kernel = heads.kernel()
    storage = Storage(heads, [start + count for start, count in STEPS], "blocks16", torch.float16)
    queries, placements = store_steps(heads, kernel, storage, STEPS)
    alone = [
        storage.attend(kernel, q, [place._replace(q0=0, q1=len(q))])
        for q, place in zip(queries, placements, strict=True)
    ]
    assert torch.cat(alone).isfinite().all()
    for threads in (1, 2, 3):
        library.set_threads(threads)
        assert torch.equal(storage.attend(kernel, torch.cat(queries), placements), torch.cat(alone)), (
            f"{threads} threads"
        )
        again = [
            storage.attend(kernel, q, [p._replace(q0=0, q1=len(q))]) for q, p in zip(queries, placements, strict=True)
        ]
        assert torch.equal(torch.cat(again), torch.cat(alone)), f"each alone by {threads} threads"


@pytest.mark.parametrize("kind", ["blocks16", "ring"])
@pytest.mark.parametrize("dtype", DTYPES)
@every_case
def test_one_token_each_of_many_sequences_whose_heads_are_taken_together_has_the_bits_of_each_alone(heads, dtype, kind):
    starts = [0, 5, PART - 1, 90, 700, 2 * PART, 33, 15, 1, 250, 16, 3 * PART - 1]
    kernel, ring = heads.kernel(), 4 * PART
    storage = Storage(heads, [start + 1 for start in starts], kind, DTYPES[dtype], ring=ring)
    queries, placements = store_steps(heads, kernel, storage, [(start, 1) for start in starts])
    for sinks in (None, torch.linspace(-6, 9, heads.num_q)):
        alone = [
            storage.attend(kernel, q, [place._replace(q0=0, q1=1)], sinks)
            for q, place in zip(queries, placements, strict=True)
        ]
        for threads in (1, 2, 3, 5):  # which take the heads of a token one by one where there are more than three
            library.set_threads(threads)
            assert torch.equal(storage.attend(kernel, torch.cat(queries), placements, sinks), torch.cat(alone)), threads
        library.set_threads(1)


@pytest.mark.parametrize("dtype", DTYPES)
@every_case
def test_every_chunking_and_storage_gives_the_bits_of_the_whole(heads, dtype):
    length = 2 * PART + 90
    q, k, v = heads.draw(length)
    whole = attend(heads, q, k, v, dtype=DTYPES[dtype])
    for kind in ("dense", "blocks64"):
        kernel, storage = heads.kernel(), Storage(heads, [length], kind, DTYPES[dtype])
        for start, stop in pairwise([0, 1, 200, 203, PART, PART + 1, PART + 70, 2 * PART - 1, 2 * PART + 1, length]):
            storage.store(kernel, k[start:stop], v[start:stop], start)
            part = storage.attend(kernel, q[start:stop], [storage.place(0, stop - start, start)])
            assert torch.equal(part, whole[start:stop]), f"{kind}, tokens {start} to {stop}"


@pytest.mark.parametrize("window", [100, PART, 300])
def test_a_ring_gives_the_bits_of_rows_in_order(window):
    heads = Heads(4, 1, 64, 64, window)
    q, k, v = heads.draw(900)
    for last in (window, PART, 511, 512, 899):
        case = (heads, q[last : last + 1], k[: last + 1], v[: last + 1], last)
        ring = attend(*case, "ring", torch.float16, ring=window)
        assert torch.equal(ring, attend(*case, "dense", torch.float16)), f"position {last}"


@pytest.mark.parametrize("threads", [1, 3])
def test_positions_of_a_shifted_context_give_the_bits_of_rows_in_order(threads):
    heads, block_size, keep, skip, length = CASES["full"], 16, 32, 48, 700
    q, k, v = heads.draw(length)
    kernel, storage = heads.kernel(), Storage(heads, [length + skip], "blocks16", torch.float16)
    place = storage.place(0, length, 0)._replace(keep=keep, skip=skip)
    assert place.blocks is not None
    hidden = place.blocks.copy()
    num_blocks = len(storage.rows[0].data) // block_size
    unused = np.setdiff1d(np.arange(num_blocks), hidden)[0]  # full of NaN
    hidden[keep // block_size : (keep + skip) // block_size] = unused
    step = place._replace(blocks=hidden)
    rows = AttentionStep([step])
    kernel.store(k, storage.rows[0], rows)
    kernel.store(v, storage.rows[1], rows)
    library.set_threads(threads)
    for start, stop in ((0, length), (length - 1, length), (500, 503)):
        got = storage.attend(kernel, q[start:stop], [step._replace(q0=0, q1=stop - start, start=start)])
        expected = attend(heads, q[start:stop], k[:stop], v[:stop], start, dtype=torch.float16)
        assert torch.equal(got, expected), f"tokens {start} to {stop}"


@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_value_that_is_not_finite_reaches_only_the_tokens_that_see_it(threads, poison):
    heads, start = CASES["full"], 3 * PART - 2
    q, k, v = heads.draw(start + 6)
    clean = attend(heads, q[start:], k, v, start)
    v[start + 3, :, 5] = poison
    library.set_threads(threads)
    got = attend(heads, q[start:], k, v, start)
    assert torch.equal(got[:3], clean[:3])
    assert not got[3:, :, 5].isfinite().any()
    assert torch.equal(got[3:, :, 6:], clean[3:, :, 6:])
