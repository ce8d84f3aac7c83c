"""Norms with their sums, and gates, in Triton: against float64, interpreted, or for real where there is a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton.fused_rows import add_rms_norm_, gate, look_up

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS, INNER_EPS = 1e-6, 1e-2


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def norm(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


@pytest.mark.parametrize("width", [1, 37, 576])
@pytest.mark.parametrize("y_dtype", [None, torch.float32, torch.float16])
@pytest.mark.parametrize("inner", [False, True])
def test_a_sum_and_its_norm_equal_float64(width, y_dtype, inner):
    x, weight, inner_weight = draw(3, width), draw(width, seed=1), draw(width, seed=2)
    y = None if y_dtype is None else draw(3, width, seed=3).to(y_dtype)
    expected = x.double()
    if y is not None:
        expected = expected + (norm(y.double(), inner_weight, INNER_EPS) if inner else y.double())
    before = x.clone()
    given = (inner_weight, INNER_EPS) if inner and y is not None else None
    out = add_rms_norm_(x, y, weight, EPS, torch.float32, given)
    assert torch.equal(x, before) if y is None else (x - expected).abs().max() < 1e-5
    normed = norm(expected, weight, EPS)
    assert (out - normed).abs().max() < 1e-5 < (out * 1.01 - normed).abs().max()


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("inner", [False, True])
def test_a_sum_in_parts_is_added_up_in_order_first(parts, inner):
    x, weight, inner_weight, y = draw(3, 70), draw(70, seed=1), draw(70, seed=2), draw(parts, 3, 70, seed=3)
    given = (inner_weight, INNER_EPS) if inner else None
    whole, total = x.clone(), y[0].clone()
    for part in y[1:]:
        total += part
    expected = add_rms_norm_(whole, total, weight, EPS, torch.float32, given)
    assert torch.equal(add_rms_norm_(x, y, weight, EPS, torch.float32, given), expected)
    assert torch.equal(x, whole)


def test_what_comes_out_is_rounded_once_to_what_is_asked_for():
    x, weight = draw(2, 100), draw(100, seed=1)
    wide = add_rms_norm_(x, None, weight, EPS, torch.float32)
    assert torch.equal(add_rms_norm_(x, None, weight, EPS, torch.float16), wide.half())


def test_a_row_has_the_same_bits_alone_and_no_rows_give_none():
    x, y, weight = draw(4, 300), draw(4, 300, seed=1).half(), draw(300, seed=2)
    alone = add_rms_norm_(x[2:3].clone(), y[2:3], weight, EPS, torch.float32)
    assert torch.equal(add_rms_norm_(x, y, weight, EPS, torch.float32)[2:3], alone)
    assert add_rms_norm_(x[:0], y[:0], weight, EPS, torch.float16).shape == (0, 300)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gates_equal_float64_far_from_zero_too(gelu, dtype):
    x = draw(3, 2 * 41) * torch.tensor([[1.0], [30.0], [1e-3]], device=DEVICE)
    x[0, :4] = torch.tensor([0.0, -0.0, 5e4, -5e4])
    x = x.to(dtype)
    gates, values = x.double().chunk(2, dim=-1)
    expected = (F.gelu(gates, approximate="tanh") if gelu else F.silu(gates)) * values
    out = gate(x, gelu, torch.float32)
    bound = 1e-6 + 1e-6 * expected.abs()
    assert ((out - expected).abs() <= bound).all()
    assert not ((out * 1.01 - expected).abs() <= bound).all()
    assert torch.equal(gate(x, gelu, torch.float16), out.half())
    assert gate(x[:0], gelu, dtype).shape == (0, 41)


@pytest.mark.parametrize("width", [1, 1024, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_of_a_table_are_looked_up_as_they_are(width, dtype):
    table = draw(7, width).to(dtype)
    ids = torch.tensor([6, 0, 3, 3], device=DEVICE)
    found = look_up(table, ids)
    assert found.dtype == torch.float32
    assert torch.equal(found, table[ids].float())
    assert look_up(table, ids[:0]).shape == (0, width)
