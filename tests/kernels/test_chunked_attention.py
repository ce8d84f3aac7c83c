"""The chunked CPU attention against its definition in float64, and the independence of its rows, bit for bit."""

from __future__ import annotations

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.chunked_attention import KEY_CHUNK, attend_span, plan_span, smallest_invariant_rows

CPU = torch.device("cpu")
SHAPES = [(9, 3, 64), (4, 1, 256), (14, 2, 64), (5, 5, 80), (12, 2, 96), (8, 8, 128)]


def run(q, k, v, start, *, window=None, softcap=None, scale=None, in_chunks=True):
    """q [T, Hq, D] at `start`, k and v [S, Hkv, D] at 0, through the span machinery, unused storage full of NaN."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    stop = start + q.shape[0]
    span = plan_span(start, stop, num_q_heads=q.shape[1], window=window, device=CPU)
    keys = torch.full((k.shape[1], span.length, k.shape[2]), float("nan"))
    values = torch.zeros(v.shape[1], span.length, v.shape[2])
    first, last = span.lo - span.first_key, span.hi - span.first_key
    keys[:, first:last] = k[span.lo : span.hi].transpose(0, 1)
    values[:, first:last] = v[span.lo : span.hi].transpose(0, 1)
    group = q.shape[1] // k.shape[1]
    min_rows = smallest_invariant_rows(k.shape[1], group, k.shape[2], v.shape[2], torch.get_num_threads())
    return attend_span(q, keys, values, span, scale=scale, softcap=softcap, min_rows=min_rows, in_chunks=in_chunks)


def draw(num_tokens, heads, dim, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, heads, dim, generator=generator)


def relative_error(got, expected):
    return ((got.double() - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("softcap", [None, 5.0], ids=["plain", "softcap"])
@pytest.mark.parametrize("window", [None, 1, 100, 256, 300], ids=lambda w: f"window{w}")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize(("start", "num_tokens"), [(0, 1), (0, 37), (255, 2), (256, 1), (600, 1), (511, 90)])
def test_equals_the_float64_definition(shape, window, softcap, start, num_tokens):
    num_q, num_kv, dim = shape
    stop = start + num_tokens
    q, k, v = draw(num_tokens, num_q, dim), draw(stop, num_kv, dim, 1), draw(stop, num_kv, dim, 2)
    got = run(q, k, v, start, window=window, softcap=softcap)
    expected = reference.attention(q.double(), k, v, q_start=start, scale=dim**-0.5, window=window, softcap=softcap)
    assert relative_error(got, expected) < 2e-6
    assert relative_error(got * 1.01, expected) > 2e-6


@pytest.mark.parametrize("window", [None, 200], ids=["full", "window200"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_a_row_is_bitwise_the_same_in_every_chunking(shape, window):
    num_q, num_kv, dim = shape
    length = 2 * KEY_CHUNK + 75
    q, k, v = draw(length, num_q, dim), draw(length, num_kv, dim, 1), draw(length, num_kv, dim, 2)
    whole = run(q, k, v, 0, window=window)
    for size in (1, 7, 64, 200):
        for start in {0, 3, KEY_CHUNK - size // 2, KEY_CHUNK, length - size}:
            start = max(0, start)
            stop = start + size
            part = run(q[start:stop], k[:stop], v[:stop], start, window=window)
            assert torch.equal(part, whole[start:stop]), f"chunk of {size} at {start}"


@pytest.mark.parametrize("window", [None, 100], ids=["full", "window100"])
@pytest.mark.parametrize(("start", "num_tokens"), [(0, 1), (255, 2), (600, 1), (511, 290)])
def test_without_chunks_it_equals_the_definition_too(start, num_tokens, window):
    stop = start + num_tokens
    q, k, v = draw(num_tokens, 9, 64), draw(stop, 3, 64, 1), draw(stop, 3, 64, 2)
    got = run(q, k, v, start, window=window, softcap=5.0, in_chunks=False)
    expected = reference.attention(q.double(), k, v, q_start=start, scale=0.125, window=window, softcap=5.0)
    assert relative_error(got, expected) < 2e-6
    assert relative_error(got * 1.01, expected) > 2e-6


def test_scores_of_hundreds_do_not_overflow():
    q, k, v = draw(3, 2, 64) * 40, draw(300, 2, 64, 1) * 40, draw(300, 2, 64, 2)
    got = run(q, k, v, 297, scale=1.0)
    expected = reference.attention(q.double(), k, v, q_start=297, scale=1.0)
    assert torch.isfinite(got).all()
    assert relative_error(got, expected) < 1e-4
