"""Sink logits in the compiled attention: right for every shape, and a row's bits a function of what it sees."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.attention_cases import Heads, Storage, assert_is_the_definition, attend

SHAPES = [(4, 4, 16), (9, 3, 64), (8, 2, 80), (4, 1, 256), (32, 1, 64), (10, 5, 48)]


def sinks_of(num_q):
    """From next to no weight to nearly all of it, each head its own."""
    return torch.linspace(-8, 8, num_q)[torch.randperm(num_q, generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("softcap", [None, 5.0], ids=["plain", "softcap"])
@pytest.mark.parametrize("window", [None, 1, 20, 100], ids=lambda w: f"window{w}")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_equals_the_float64_definition(shape, window, softcap):
    num_q, num_kv, dim = shape
    heads = Heads(num_q, num_kv, dim, dim, window, softcap)
    for start, num_tokens in ((0, 1), (0, 37), (63, 2), (200, 1), (127, 40)):
        assert_is_the_definition(heads, start, num_tokens, sinks=sinks_of(num_q))


@pytest.mark.parametrize("window", [None, 50], ids=["full", "window50"])
def test_every_chunking_and_storage_gives_the_bits_of_the_whole(window):
    heads, sinks = Heads(9, 3, 64, 64, window), sinks_of(9)
    q, k, v = heads.draw(150)
    whole = attend(heads, q, k, v, sinks=sinks)
    for kind in ("dense", "blocks16", "blocks64"):
        kernel, storage = heads.kernel(), Storage(heads, [150], kind)
        start = 0
        for size in (1, 2, 60, 1, 3, 64, 19):
            part = slice(start, start + size)
            storage.store(kernel, k[part], v[part], start)
            got = storage.attend(kernel, q[part], [storage.place(0, size, start)], sinks)
            assert torch.equal(got, whole[part]), f"{kind} at {start}"
            start += size


def test_what_is_not_finite_reaches_only_the_rows_that_see_it():
    heads, sinks = Heads(9, 3, 64, 64), sinks_of(9)
    q, k, v = heads.draw(100)
    clean = attend(heads, q, k, v, sinks=sinks)
    v[70, :, 3] = float("nan")
    got = attend(heads, q, k, v, sinks=sinks)
    assert torch.equal(got[:70], clean[:70])
    assert got[70:, :, 3].isnan().all()


def test_without_weight_a_sink_changes_little_and_with_all_of_it_leaves_nothing():
    heads = Heads(4, 2, 64, 64)
    q, k, v = heads.draw(80)
    plain = attend(heads, q, k, v)
    assert (attend(heads, q, k, v, sinks=torch.full((4,), float("-inf"))) - plain).abs().max() < 1e-6
    assert attend(heads, q, k, v, sinks=torch.full((4,), 1e4)).abs().max() == 0
