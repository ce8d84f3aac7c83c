"""The residual stream: what a block adds to it, whichever kernels make the sums and norms."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.rows import HeadWeights, Rotation, gate, rms_norm, split_heads
from octavo.kernels.triton import gated_product
from octavo.kernels.triton.gated_product import GatedTile
from octavo.kernels.triton.skinny_gemm import SkinnyScratch
from octavo.layers.linear import Linear
from octavo.layers.linear.dense_route import DenseWeight
from octavo.layers.linear.skinny_route import SkinnyWeight
from octavo.layers.norm import RMSNorm
from octavo.layers.residual import Residual

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
WIDTH, INNER = 96, 40


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def linear(n, k, seed, *, dtype=torch.bfloat16, fused=True, exact=False, bias=None):
    weight = (draw(n, k, seed=seed) / k**0.5).to(dtype)
    packed = SkinnyWeight(weight, SkinnyScratch(DEVICE), exact=exact) if fused else DenseWeight(weight)
    return Linear(packed, bias)


def norm_of(seed):
    return RMSNorm(draw(WIDTH, seed=seed).abs() + 0.5, 1e-5, dtype=torch.bfloat16)


def close(found, expected):
    return (found.float() - expected.float()).norm() / expected.float().norm() < 1e-2


@pytest.fixture
def calls(monkeypatch):
    """How often a norm was a kernel of its own."""
    counted = []
    after = RMSNorm.after_
    monkeypatch.setattr(RMSNorm, "after_", lambda *given: counted.append(given) or after(*given))
    return counted


@pytest.fixture
def gated_tiles(monkeypatch):
    monkeypatch.setitem(gated_product._SUMS, (INNER, WIDTH), GatedTile(8, 32, 2))


def block(x, rows, **form):
    """Two gated layers with their norms on a stream: (what the norm after them gives, what the stream's x is)."""
    norms = norm_of(1), norm_of(9), norm_of(4)
    up, down = linear(2 * INNER, WIDTH, 2, **form), linear(WIDTH, INNER, 3, **form)
    x = x[:rows].clone()
    stream = Residual(x)
    for norm, after in pairwise(norms):
        stream.add_product(down, stream.gated(norm, up, "silu"), None if after is norms[-1] else after)
    return stream.normed(norms[-1]), x


def expected(x, rows, dtype):
    x = x[:rows].clone()
    up, down = (linear(*shape, dtype=dtype, fused=False) for shape in ((2 * INNER, WIDTH, 2), (WIDTH, INNER, 3)))
    for norm in (norm_of(1), norm_of(9)):
        x += down(gate(up(rms_norm(x, norm.weight, 1e-5)), "silu"))
    return rms_norm(x, norm_of(4).weight, 1e-5), x


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("form", [{}, {"exact": True}, {"fused": False}], ids=str)
def test_sums_and_norms_are_the_same_whoever_makes_them(gated_tiles, form, rows):
    # Triton's interpreter has no matrix product of bfloat16; only of that, and of one row, are norms halved.
    dtype = torch.bfloat16 if rows == 1 and not form else torch.float16
    x = draw(3, WIDTH, seed=7)
    for found, wanted in zip(block(x, rows, dtype=dtype, **form), expected(x, rows, dtype), strict=True):
        assert close(found, wanted)
        assert not close(found * 1.05, wanted)


@pytest.mark.parametrize("device_kernels", [False, True])
def test_products_in_parts_are_added_up_by_whoever_takes_them(device_kernels, monkeypatch):
    def parts(weight, x):
        left = weight.weight.shape[1] // 2
        x, w = x.float(), weight.weight.float()
        return torch.stack((x[:, :left] @ w[:, :left].t(), x[:, left:] @ w[:, left:].t()))

    monkeypatch.setattr(SkinnyWeight, "apply_in_parts", parts)
    monkeypatch.setattr(SkinnyWeight, "add_to_", lambda *_: False)
    if device_kernels:
        monkeypatch.setattr("octavo.kernels.rows._by_triton", lambda x: True)
    x = draw(3, WIDTH, seed=7)
    for found, wanted in zip(block(x, 3, dtype=torch.float16), expected(x, 3, torch.float16), strict=True):
        assert close(found, wanted)
        assert not close(found * 1.05, wanted)
    norm, qkv = norm_of(1), linear(3 * 16, WIDTH, 2, dtype=torch.float16)
    found = Residual(x.clone()).product(norm, qkv)
    assert found.shape == (2, 3, 48)
    table = torch.ones(1, 16, device=DEVICE)
    rotation = Rotation(table, torch.zeros_like(table), torch.zeros(3, dtype=torch.int64, device=DEVICE))
    heads = torch.cat(split_heads(found, 1, 1, 16, rotation, HeadWeights()), dim=1)
    assert close(heads.flatten(1), linear(48, WIDTH, 2, dtype=torch.float16, fused=False)(norm(x)))


def test_of_one_row_only_the_norms_at_either_end_are_kernels_of_their_own(gated_tiles, calls):
    x = draw(3, WIDTH, seed=7)
    block(x, 1)
    assert len(calls) == 2
    block(x, 3)
    block(x, 1, exact=True)
    block(x, 1, fused=False)
    assert len(calls) == 2 + 3 * 3


def test_a_projection_with_a_bias_takes_its_norm_by_half_and_leaves_the_bias_to_others(calls):
    x, norm, y = draw(1, WIDTH, seed=7), norm_of(1), draw(1, INNER, seed=5)
    down, projection = linear(WIDTH, INNER, 3), linear(INNER, WIDTH, 2, bias=draw(INNER, seed=8))
    summed, stream = x + down(y), Residual(x)
    stream.add_product(down, y, norm)
    found = stream.product(norm, projection)
    assert not calls
    assert torch.allclose(x, summed, atol=2e-2)
    assert close(found, linear(INNER, WIDTH, 2, fused=False)(rms_norm(summed, norm.weight, norm.eps)))


def test_half_a_norm_serves_that_norm_alone_and_until_x_changes(calls):
    x, norms, y = draw(1, WIDTH, seed=7), (norm_of(1), norm_of(9)), draw(1, INNER, seed=5)
    down, projection = linear(WIDTH, INNER, 3), linear(INNER, WIDTH, 2)
    stream = Residual(x)
    stream.add_product(down, y, norms[0])
    assert close(stream.product(norms[1], projection), projection(norms[1](x)))
    stream.add(draw(1, WIDTH, seed=6))
    assert close(stream.product(norms[0], projection), projection(norms[0](x)))
    stream.add_product(down, y, norms[0])
    stream.add_product(down, y, None)
    assert close(stream.product(norms[0], projection), projection(norms[0](x)))
    assert len(calls) == 3


def test_what_is_added_with_a_bias_waits_for_the_next_norm(calls):
    x, norm, y = draw(1, WIDTH, seed=7), norm_of(1), draw(1, INNER, seed=5)
    wide = linear(WIDTH, INNER, 3, bias=draw(WIDTH, seed=8))
    before, stream = x.clone(), Residual(x)
    stream.add_product(wide, y, norm)
    assert torch.equal(x, before)
    stream.product(norm, linear(INNER, WIDTH, 2))
    assert len(calls) == 1
    assert torch.allclose(x, before + wide(y), atol=1e-5)


def test_float16_which_a_sum_may_leave_keeps_norms_whole(calls):
    x, norm, y = draw(1, WIDTH, seed=7), norm_of(1), draw(1, INNER, seed=5)
    down = linear(WIDTH, INNER, 3, dtype=torch.float16)
    stream = Residual(x)
    stream.add_product(down, y, norm)
    stream.product(norm, linear(INNER, WIDTH, 2))
    assert len(calls) == 1
