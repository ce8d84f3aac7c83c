"""Norms, rotary embedding and gates of rows against float64, compiled and in torch, and a row's bits its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from octavo.kernels import rows
from octavo.kernels.cpu import library, rowwise
from octavo.kernels.greedy import greedy_tokens

WIDTHS = [1, 7, 15, 16, 17, 31, 576, 577, 1536]


@pytest.fixture(params=["compiled", "torch"])
def route(request, monkeypatch):
    """The functions of `rows` by each implementation; what comes back says which one it is."""
    if request.param == "torch":
        monkeypatch.setattr(library, "load", lambda: library.Library(None, "as the test asks"))
    return request.param


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm(x, weight, eps):
    x = x.double()
    return x * weight.double() / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rotate(x, cos, sin):
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    return torch.cat((first, second), -1) * cos + torch.cat((second, first), -1) * sin


def angles(num_tokens, dim, seed=0):
    """cos and sin [T, D], sin signed by half."""
    angle = draw(num_tokens, dim // 2, seed=seed) * 10
    return torch.cat((angle.cos(),) * 2, -1), torch.cat((-angle.sin(), angle.sin()), -1)


def relative_error(got, expected):
    return ((got.double() - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-2])
def test_a_norm_is_its_definition(route, width, eps):
    for size in (1.0, 1e-3, 1e4):
        x, weight = draw(40, width) * size, draw(width, seed=1)
        got, expected = rows.rms_norm(x, weight, eps), norm(x, weight, eps)
        assert relative_error(got, expected) < 1e-6
        assert relative_error(got * 1.01, expected) > 1e-6


def test_a_norm_is_over_the_last_dimension_of_any_tensor(route):
    x, weight = draw(3, 5, 24).transpose(0, 1), draw(24, seed=1)
    assert relative_error(rows.rms_norm(x, weight, 1e-6), norm(x, weight, 1e-6)) < 1e-6
    assert rows.rms_norm(x[:0], weight, 1e-6).shape == (0, 3, 24)


def test_a_norm_of_zeros_is_zeros(route):
    assert (rows.rms_norm(torch.zeros(2, 33), torch.ones(33), 1e-6) == 0).all()


@pytest.mark.parametrize("with_norms", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("dim", [2, 6, 16, 30, 64, 80, 128])
@pytest.mark.parametrize("num_tokens", [0, 1, 5, 70])
def test_queries_and_keys_are_turned_and_values_are_not(route, num_tokens, dim, with_norms):
    qkv, (cos, sin) = draw(num_tokens, 9, dim), angles(num_tokens, dim)
    norms = (draw(dim, seed=3), draw(dim, seed=4)) if with_norms else None
    q, k, v = rows.rotate_heads(qkv.clone(), 4, 3, cos, sin, norms, 1e-6)
    assert torch.equal(v, qkv[:, 7:])
    heads = [qkv[:, :4], qkv[:, 4:7]]
    if norms is not None:
        heads = [norm(x, weight, 1e-6) for x, weight in zip(heads, norms, strict=True)]
    for got, x in zip((q, k), heads, strict=True):
        expected = rotate(x, cos, sin)
        assert got.shape == expected.shape
        if num_tokens:
            assert relative_error(got, expected) < 1e-6
            assert relative_error(got * 1.01, expected) > 1e-6


@pytest.mark.parametrize("with_norms", [False, True], ids=["plain", "normed"])
def test_a_token_is_turned_by_its_own_angles_alone_and_among_others_whatever_the_strides(route, with_norms):
    qkv, (cos, sin) = draw(33, 6, 48), angles(33, 48)
    norms = (draw(48, seed=3), draw(48, seed=4)) if with_norms else None
    whole = torch.cat(rows.rotate_heads(qkv.clone(), 3, 2, cos, sin, norms, 1e-6), dim=1)
    for layout in (qkv.transpose(0, 1).contiguous().transpose(0, 1), torch.cat((qkv, qkv), 1)[:, :6]):
        assert not layout.is_contiguous()
        # The strides of a view that torch's own operations take; other bits, the same values.
        got = torch.cat(rows.rotate_heads(layout, 3, 2, cos, sin, norms, 1e-6), dim=1)
        assert relative_error(got, whole.double()) < 1e-6
    for t in (0, 1, 17, 32):
        one = qkv[t : t + 1].clone()
        alone = rows.rotate_heads(one, 3, 2, cos[t : t + 1], sin[t : t + 1], norms, 1e-6)
        assert torch.equal(torch.cat(alone, dim=1), whole[t : t + 1])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gate_is_its_definition(route, activation, width):
    x = draw(30, 2 * width) * 3
    gates, values = x.double().chunk(2, -1)
    expected = (F.silu(gates) if activation == "silu" else F.gelu(gates, approximate="tanh")) * values
    got = rows.gate(x, activation)
    assert got.shape == (30, width)
    assert relative_error(got, expected) < 1e-6
    assert relative_error(got * 1.01, expected) > 1e-6
    wider = torch.cat((x, x), dim=1)[:, : 2 * width]
    assert relative_error(rows.gate(wider, activation), expected) < 1e-6


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gate_of_a_large_number_is_that_number_or_nothing(route, activation):
    gates = torch.tensor([1e4, -1e4, 1e6, -1e6, 100.0, -100.0, 1e10, -1e10, 0.0, -0.0, 1e-30, 88.5, -88.5, 30.0])
    got = rows.gate(torch.cat((gates, torch.ones(14)))[None], activation)[0]
    assert got.isfinite().all()
    big = gates > 20
    assert torch.allclose(got[big], gates[big], rtol=1e-6, atol=0)
    assert (got[~big].abs() < 1e-25).all()
    poisoned = rows.gate(torch.tensor([[float("nan"), 1.0, 1.0, 1.0]]), activation)
    assert poisoned[0, 0].isnan() and poisoned[0, 1].isfinite()


def test_the_exponential_is_good_to_two_units_in_the_last_place():
    x = torch.cat((-torch.linspace(1e-3, 86, 200_003), torch.linspace(1e-3, 86, 100_003)))
    got = rowwise.gate(torch.stack((x, torch.ones_like(x)), dim=1), gelu=False)[:, 0].double()
    # silu(x) = x / (1 + exp(-x)); the quotient and the sum add a rounding each.
    expected = x.double() / (1 + (-x.double()).exp())
    assert ((got - expected) / expected).abs().max() < 4 * 2.0**-24


@pytest.mark.parametrize("width", [7, 577, 1536])
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(width):
    x, weight = draw(90, 2 * width) * 3, draw(2 * width, seed=1)
    functions = {
        "norm": lambda part: rowwise.rms_norm(part, weight, 1e-6),
        "silu": lambda part: rowwise.gate(part, gelu=False),
        "gelu": lambda part: rowwise.gate(part, gelu=True),
    }
    for name, function in functions.items():
        expected = torch.cat([function(row) for row in x.split(1)])
        for threads in (1, 2, 3, 5):
            library.set_threads(threads)
            assert torch.equal(function(x), expected), f"{name}, {threads} threads"
            for start, stop in ((0, 2), (3, 40), (85, 90)):
                assert torch.equal(function(x[start:stop]), expected[start:stop]), f"{name}, {threads} threads"


def test_rows_that_are_not_finite_spoil_no_other():
    x, weight = draw(5, 34), draw(34, seed=1)
    poisoned = x.clone()
    poisoned[2, 3] = float("nan")
    others = [0, 1, 3, 4]
    for function in (lambda part: rowwise.rms_norm(part, weight, 1e-6), lambda part: rowwise.gate(part, gelu=True)):
        assert torch.equal(function(poisoned)[others], function(x)[others])
        assert function(poisoned)[2].isnan().any()


def test_sixteen_bit_gates_stay_sixteen_bit(route):
    x = draw(4, 40).bfloat16()
    got = rows.gate(x, "silu")
    assert got.dtype == torch.bfloat16
    gates, values = x.double().chunk(2, -1)
    assert relative_error(got, F.silu(gates) * values) < 2.0**-6


@pytest.mark.parametrize("width", [1, 15, 16, 33, 16384, 16385, 49152, 100_003])
@pytest.mark.usefixtures("route")
def test_the_best_of_a_row_is_the_largest_at_its_first_place(width):
    x = draw(5, width)
    x[1] = -torch.inf
    x[2, width // 2 :: 7] = 9.0
    x[3] = x[3].round()
    values, places = rows.best(x)
    assert torch.equal(values, x.amax(1))
    assert places.tolist() == [row.index(max(row)) for row in x.tolist()]
    places[1] = -1  # of no use to who samples
    assert torch.equal(greedy_tokens(x), places)


@pytest.mark.parametrize("place", [0, 15, 16, 20_000, 49_151, 49_152])
@pytest.mark.usefixtures("route")
def test_what_is_no_number_is_the_best_of_its_row_alone(place):
    x = draw(3, 49_153)
    x[1, place] = torch.nan
    x[2, 40_000] = torch.inf
    values, places = rows.best(x)
    assert torch.equal(values.isnan(), torch.tensor([False, True, False]))
    assert places[1] == place and places[2] == 40_000 and values[2] == torch.inf
    assert greedy_tokens(x).tolist() == [places[0], -1, -1]
