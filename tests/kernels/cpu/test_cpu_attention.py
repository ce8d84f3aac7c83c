"""Attention from stored rows: right in every form of storage, and a row's bits a function of what it sees."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.cpu import library
from octavo.kernels.cpu.attention import AttentionKernel
from tests.kernels.cpu.attention_cases import (
    Heads,
    Storage,
    assert_is_the_definition,
    attend,
    relative_error,
    store_steps,
)

CHUNK = 64
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
KINDS = ["dense", "blocks16", "blocks32", "blocks64"]
SHAPES = [
    (4, 4, 16),
    (9, 3, 64),
    (8, 2, 80),
    (5, 5, 96),
    (8, 1, 128),
    (4, 1, 256),
    (32, 1, 64),
    (34, 2, 32),
    (10, 5, 48),
]

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))


def heads_of(shape, window=None, softcap=None):
    num_q, num_kv, dim = shape
    return Heads(num_q, num_kv, dim, dim, window, softcap)


@pytest.mark.parametrize(("start", "num_tokens"), [(0, 1), (0, 37), (63, 2), (64, 1), (200, 1), (127, 90)])
@pytest.mark.parametrize("window", [None, 1, 20, 64, 100], ids=lambda w: f"window{w}")
@every_shape
def test_equals_the_float64_definition(shape, window, start, num_tokens):
    assert_is_the_definition(heads_of(shape, window), start, num_tokens)


@pytest.mark.parametrize("head_major", [False, True], ids=["token-major", "head-major"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("start", "num_tokens"), [(0, 45), (130, 1)])
def test_equals_the_float64_definition_from_every_storage(kind, dtype, head_major, start, num_tokens):
    for heads in (heads_of((9, 3, 64)), heads_of((4, 1, 80), 50), Heads(4, 2, 64, 32), Heads(4, 2, 16, 48, 70)):
        assert_is_the_definition(heads, start, num_tokens, kind=kind, dtype=DTYPES[dtype], head_major=head_major)


@pytest.mark.parametrize("softcap", [5.0, 50.0])
@every_shape
def test_equals_the_float64_definition_with_capped_scores(shape, softcap):
    for start, num_tokens in ((0, 40), (150, 1)):
        assert_is_the_definition(heads_of(shape, None, softcap), start, num_tokens)
        assert_is_the_definition(heads_of(shape, 30, softcap), start, num_tokens)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 7, 64, 100])
def test_a_ring_gives_the_bits_of_rows_in_order(window, dtype):
    heads = heads_of((6, 2, 64), window)
    q, k, v = heads.draw(260)
    for position in (0, window - 1, window, 63, 64, 200, 259):
        ring = attend(
            heads, q[position : position + 1], k[: position + 1], v[: position + 1], position, "ring", DTYPES[dtype],
            ring=window,
        )  # fmt: skip
        dense = attend(
            heads, q[position : position + 1], k[: position + 1], v[: position + 1], position, "dense", DTYPES[dtype]
        )
        assert torch.equal(ring, dense), f"position {position}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 90], ids=["full", "window90"])
def test_blocks_and_layouts_change_no_bit(window, dtype):
    heads = heads_of((9, 3, 64), window)
    q, k, v = heads.draw(150)
    expected = attend(heads, q[100:], k, v, 100, "dense", DTYPES[dtype])
    for kind in KINDS:
        for head_major in (False, True):
            got = attend(heads, q[100:], k, v, 100, kind, DTYPES[dtype], head_major=head_major)
            assert torch.equal(got, expected), f"{kind}, head-major {head_major}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_stored_rows_are_rounded_as_torch_rounds(dtype):
    heads = Heads(1, 1, 16, 16)
    special = torch.tensor([0.0, -0.0, 1e-8, 6e-8, 3e-5, 6.1e-5, 65503.0, 65520.0, -1e30, 1.00048828125, 1e-40, 3e38])
    special = torch.cat((special, torch.tensor([float("inf"), -float("inf"), float("nan"), 2.0009765625])))
    values = torch.cat((special.view(1, 1, 16), torch.randn(50, 1, 16, generator=torch.Generator().manual_seed(0))))
    storage = Storage(heads, [51], dtype=DTYPES[dtype])
    storage.store(heads.kernel(), values, values)
    for rows in storage.rows:
        assert torch.equal(rows.data[5:].nan_to_num(7.0), values.to(DTYPES[dtype]).nan_to_num(7.0))
        assert torch.equal(rows.data[5:].isnan(), values.isnan())


STEPS = [(0, 5), (40, 1), (0, 130), (63, 3), (199, 1), (70, 33), (0, 1)]


@pytest.mark.parametrize("kind", ["dense", "blocks16", "blocks32"])
@pytest.mark.parametrize("window", [None, 50], ids=["full", "window50"])
def test_sequences_computed_together_give_the_bits_of_each_alone(window, kind):
    heads = heads_of((6, 2, 80), window, 20.0)
    kernel = heads.kernel()
    storage = Storage(heads, [start + count for start, count in STEPS], kind, torch.float16)
    queries, placements = store_steps(heads, kernel, storage, STEPS)
    for threads in (1, 3):
        library.set_threads(threads)
        together = storage.attend(kernel, torch.cat(queries), placements)
        for i, ((start, count), place) in enumerate(zip(STEPS, placements, strict=True)):
            alone = storage.attend(kernel, queries[i], [storage.place(0, count, start, i)])
            assert torch.equal(together[place.q0 : place.q1], alone), f"sequence {i}, {threads} threads"
            assert alone.isfinite().all()


def test_tokens_that_no_sequence_has_are_left_alone():
    heads = heads_of((6, 2, 64))
    kernel, storage = heads.kernel(), Storage(heads, [10])
    q, k, v = heads.draw(10)
    storage.store(kernel, k, v)
    out = storage.attend(kernel, q, [storage.place(4, 7, 3)])
    assert out[:4].isnan().all() and out[7:].isnan().all() and out[4:7].isfinite().all()


def test_new_rows_are_taken_out_of_wider_tensors():
    heads = heads_of((6, 2, 64))
    q, k, v = heads.draw(40)
    packed = torch.cat((q, k, v), dim=1)
    got = attend(heads, packed[:, :6], packed[:, 6:8], packed[:, 8:])
    assert torch.equal(got, attend(heads, q, k, v))


@given(
    st.data(),
    st.sampled_from([(9, 3, 64), (8, 1, 80), (2, 2, 128), (32, 1, 16)]),
    st.sampled_from([None, 1, 30, 64, 150]),
    st.sampled_from(["dense", "blocks16", "blocks64"]),
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_every_chunking_gives_the_bits_of_the_whole(data, shape, window, kind):
    heads = heads_of(shape, window)
    length = data.draw(st.integers(1, 220))
    cuts = sorted(data.draw(st.sets(st.integers(1, 219), max_size=12)))
    q, k, v = heads.draw(length)
    whole = attend(heads, q, k, v)
    kernel, storage = heads.kernel(), Storage(heads, [length], kind)
    edges = [0, *(cut for cut in cuts if cut < length), length]
    for start, stop in pairwise(edges):
        storage.store(kernel, k[start:stop], v[start:stop], start)
        part = storage.attend(kernel, q[start:stop], [storage.place(0, stop - start, start)])
        assert torch.equal(part, whole[start:stop]), f"tokens {start} to {stop}"


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("window", [None, 9], ids=["full", "window9"])
@pytest.mark.parametrize("poisoned", ["keys", "values"])
@every_shape
def test_what_is_not_finite_reaches_only_the_rows_that_see_it(shape, poisoned, window, poison):
    heads = heads_of(shape, window)
    q, k, v = heads.draw(100)
    clean = attend(heads, q, k, v)
    (k if poisoned == "keys" else v)[70, :, 3] = poison
    got = attend(heads, q, k, v)
    stop = 100 if window is None else 70 + window
    assert torch.equal(got[:70], clean[:70]) and torch.equal(got[stop:], clean[stop:])
    if poisoned == "values":
        assert not got[70:stop, :, 3].isfinite().any()
        assert torch.equal(got[70:stop, :, 4:], clean[70:stop, :, 4:])
    else:
        assert not torch.equal(got[70:stop], clean[70:stop])


def test_a_query_that_is_not_finite_spoils_its_own_row_only():
    heads = heads_of((9, 3, 64))
    q, k, v = heads.draw(40)
    clean = attend(heads, q, k, v)
    q[17, 4, 5] = float("nan")
    got = attend(heads, q, k, v)
    assert got[17, 4].isnan().all()
    got[17, 4] = clean[17, 4]
    assert torch.equal(got, clean)


def test_scores_of_thousands_do_not_overflow():
    heads = heads_of((4, 2, 64))
    q, k, v = heads.draw(150)
    q, k = q * 40, k * 40
    got = attend(heads, q, k, v)
    assert got.isfinite().all()
    assert relative_error(got, heads.define(q, k, v, 0)) < 2e-3
    capped = heads_of((4, 2, 64), None, 30.0)
    assert relative_error(attend(capped, q, k, v), capped.define(q, k, v, 0)) < 1e-4


def test_equal_scores_give_the_mean():
    heads = heads_of((2, 2, 16))
    q, k, v = heads.draw(130)
    got = attend(heads, torch.zeros_like(q), k, v)
    mean = v.double().cumsum(0) / torch.arange(1, 131)[:, None, None]
    assert relative_error(got, mean) < 1e-6


@pytest.mark.parametrize(
    ("heads", "said"),
    [((4, 2, 24, 16), "24 and 16"), ((4, 2, 16, 40), "16 and 40"), ((66, 2, 16, 16), "33 query heads")],
    ids=["k", "v", "group"],
)
def test_what_the_kernel_cannot_serve_is_refused_with_the_reason(heads, said):
    assert said in AttentionKernel.refusal(*heads)
    assert AttentionKernel.refusal(64, 2, 16, 272) is None
