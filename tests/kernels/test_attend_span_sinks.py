"""Sink logits in the chunked CPU attention: right for every shape, and rows that do not depend on one another."""

from __future__ import annotations

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.chunked_attention import KEY_CHUNK, attend_span, plan_span, smallest_invariant_rows

SHAPES = [(9, 3, 64), (4, 1, 256), (5, 5, 80)]


def draw(num_tokens, heads, dim, seed=0):
    return torch.randn(num_tokens, heads, dim, generator=torch.Generator().manual_seed(seed))


def run(q, k, v, start, sinks, window=None):
    """q [T, Hq, D] at `start` over k and v [S, Hkv, D] from position 0; storage that no key lies in is full of NaN."""
    (_, num_q, dim), num_kv = q.shape, k.shape[1]
    span = plan_span(start, start + len(q), num_q_heads=num_q, window=window, device=torch.device("cpu"))
    keys, values = torch.full((num_kv, span.length, dim), float("nan")), torch.zeros(num_kv, span.length, dim)
    first, last = span.lo - span.first_key, span.hi - span.first_key
    keys[:, first:last] = k[span.lo : span.hi].transpose(0, 1)
    values[:, first:last] = v[span.lo : span.hi].transpose(0, 1)
    min_rows = smallest_invariant_rows(num_kv, num_q // num_kv, dim, dim, torch.get_num_threads())
    return attend_span(q, keys, values, span, scale=dim**-0.5, softcap=None, min_rows=min_rows, sinks=sinks)


@pytest.mark.parametrize("window", [None, 100], ids=["full", "window100"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_equals_the_float64_definition(shape, window):
    num_q, num_kv, dim = shape
    sinks = torch.linspace(8, -8, num_q)
    for start, num_tokens in ((0, 1), (0, 37), (255, 2), (600, 1), (511, 90)):
        stop = start + num_tokens
        q, k, v = draw(num_tokens, num_q, dim), draw(stop, num_kv, dim, 1), draw(stop, num_kv, dim, 2)
        got = run(q, k, v, start, sinks, window)
        expected = reference.attention(
            q.double(), k, v, q_start=start, scale=dim**-0.5, window=window, sink_logits=sinks
        )
        bound = 2e-6 * expected.abs().max()
        assert (got - expected).abs().max() < bound
        assert (got * 1.01 - expected).abs().max() > bound


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_a_row_is_bitwise_the_same_in_every_chunking(shape):
    num_q, num_kv, dim = shape
    sinks, length = torch.linspace(3, -3, num_q), KEY_CHUNK + 75
    q, k, v = draw(length, num_q, dim), draw(length, num_kv, dim, 1), draw(length, num_kv, dim, 2)
    whole = run(q, k, v, 0, sinks)
    for size in (1, 7, 64):
        for start in (0, 3, KEY_CHUNK - size // 2, KEY_CHUNK, length - size):
            part = run(q[start : start + size], k[: start + size], v[: start + size], start, sinks)
            assert torch.equal(part, whole[start : start + size]), f"chunk of {size} at {start}"
