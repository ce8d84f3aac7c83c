"""From projected heads to stored ones in one kernel: interpreted, or for real where there is a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels import reference
from octavo.kernels.rows import HeadNorms, Rotation
from octavo.kernels.triton.head_rows import HeadShape, rotate_and_store_heads
from octavo.kernels.triton.paged_decode import StoredRows
from octavo.storage.codecs import CODECS
from tests.kernels.cpu.codec_cases import hard_values

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HQ, HKV, ROWS = 3, 2, 12


def store(codec, dim, heads=HKV, rows=ROWS):
    made = CODECS[codec].allocate(rows, heads, dim, DEVICE)
    for plane in made.planes().values():
        plane.fill_(3)
    return made


def unturned(dim, count):
    """A rotation that leaves everything as it is."""
    table = torch.ones(1, dim, device=DEVICE)
    return Rotation(table, torch.zeros_like(table), torch.zeros(count, dtype=torch.int64, device=DEVICE))


def turned(dim, positions):
    """Of a table of 50 positions, and the frequencies that it was made of."""
    frequencies = 1.0 / 100 ** (torch.arange(0, dim, 2) / dim)
    angle = torch.arange(50)[:, None] * frequencies
    cos, sin = torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1)
    return Rotation(cos.to(DEVICE), sin.to(DEVICE), torch.tensor(positions, device=DEVICE)), frequencies


def run(qkv, rotation, norms, rows, keys, values, *, codecs=("f16", "f16"), dim, dtype=torch.float32, bias=None):
    shape = HeadShape(HQ, HKV, dim, *codecs)
    planes = [StoredRows.of(each.planes()) for each in (keys, values)]
    return rotate_and_store_heads(shape, qkv, rotation, norms, rows, *planes, dtype, bias)


def assert_equal_planes(got, expected):
    for name, plane in expected.planes().items():
        mine = got.planes()[name]
        assert torch.equal(mine.isnan(), plane.isnan()), name
        assert torch.equal(mine.float().nan_to_num(), plane.float().nan_to_num()), name


# The interpreter computes in numpy, which warns of what a GPU does in silence.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning")
@pytest.mark.parametrize("dim", [16, 64, 80, 128])
@pytest.mark.parametrize("codec", ["f16", "q8_0", "q4_0"])
def test_values_are_stored_with_the_bits_of_their_codec_however_hard_they_are(codec, dim):
    values = hard_values(dim)[[*range(12), 30, 60, 79], :HKV].to(DEVICE)
    count = len(values)
    keys = values.where(values.isfinite(), 1.0)  # a partner that is not finite would spoil both
    qkv = torch.cat((torch.randn(count, HQ, dim, device=DEVICE), keys, values), dim=1).flatten(1)
    expected_keys, got_keys, expected_values, got_values = (store(codec, dim, rows=count + 2) for _ in range(4))
    rows = torch.randperm(count + 2, generator=torch.Generator().manual_seed(0))[:count].to(DEVICE)
    expected_keys.write(rows, keys)
    expected_values.write(rows, values)
    q = run(qkv, unturned(dim, count), None, rows, got_keys, got_values, codecs=(codec, codec), dim=dim)
    assert torch.equal(q.flatten(1), qkv[:, : HQ * dim])
    assert_equal_planes(got_keys, expected_keys)
    assert_equal_planes(got_values, expected_values)


@pytest.mark.parametrize("dim", [32, 96])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_heads_are_normalised_and_turned_by_their_own_positions(dim, normed, biased):
    positions = [7, 0, 49, 7]
    gen = torch.Generator().manual_seed(1)
    qkv = torch.randn(4, (HQ + 2 * HKV) * dim, generator=gen).half()
    bias = torch.randn((HQ + 2 * HKV) * dim, generator=gen) if biased else None
    norms = HeadNorms(torch.randn(dim, generator=gen), torch.randn(dim, generator=gen), 1e-3) if normed else None
    rotation, frequencies = turned(dim, positions)
    x = (qkv.double() + (0 if bias is None else bias)).view(4, -1, dim)
    heads = x[:, : HQ + HKV]
    if norms is not None:
        heads = heads * (heads.square().mean(-1, keepdim=True) + norms.eps).rsqrt()
        heads = torch.cat((heads[:, :HQ] * norms.q, heads[:, HQ:] * norms.k), dim=1)
        norms = HeadNorms(norms.q.to(DEVICE), norms.k.to(DEVICE), norms.eps)
    expected = reference.rotate(heads, torch.tensor(positions), frequencies.double())
    keys, values = store("f32", dim), store("f32", dim)
    rows = torch.tensor([5, 0, 11, 2], device=DEVICE)
    q = run(
        qkv.to(DEVICE), rotation, norms, rows, keys, values, codecs=("f32", "f32"), dim=dim,
        bias=None if bias is None else bias.to(DEVICE),
    )  # fmt: skip
    stored = keys.planes()["values"][rows].cpu()
    assert (q.cpu() - expected[:, :HQ]).abs().max() < 1e-4 < (q.cpu() * 1.01 - expected[:, :HQ]).abs().max()
    assert (stored - expected[:, HQ:]).abs().max() < 1e-4 < (stored * 1.01 - expected[:, HQ:]).abs().max()
    assert (values.planes()["values"][rows].cpu() - x[:, HQ + HKV :]).abs().max() < 1e-6


@pytest.mark.parametrize("biased", [False, True])
def test_a_projection_in_parts_is_added_up_in_order_first(biased):
    dim, count = 32, 3
    qkv = torch.randn(3, count, (HQ + 2 * HKV) * dim, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    rotation, _ = turned(dim, [3, 0, 49])
    norms = HeadNorms(*torch.rand(2, dim, device=DEVICE), 1e-6)
    bias = torch.randn(qkv.shape[2], device=DEVICE) if biased else None
    rows = torch.tensor([5, 0, 7], device=DEVICE)
    planes = [[store("f16", dim) for _ in range(2)] for _ in range(2)]
    whole = (qkv[0] + qkv[1]) + qkv[2]
    q = run(qkv, rotation, norms, rows, *planes[0], dim=dim, bias=bias)
    assert torch.equal(q, run(whole, rotation, norms, rows, *planes[1], dim=dim, bias=bias))
    for found, expected in zip(*planes, strict=True):
        assert_equal_planes(found, expected)


@pytest.mark.parametrize("nowhere", [-1, ROWS, 2**40])
def test_tokens_without_a_row_are_stored_nowhere(nowhere):
    qkv = torch.randn(2, (HQ + 2 * HKV) * 64, device=DEVICE)
    keys, values = store("q8_0", 64), store("q4_0", 64)
    untouched = [{n: p.clone() for n, p in each.planes().items()} for each in (keys, values)]
    rows = torch.tensor([nowhere, 4], device=DEVICE)
    q = run(qkv, unturned(64, 2), None, rows, keys, values, codecs=("q8_0", "q4_0"), dim=64, dtype=torch.float16)
    assert torch.equal(q.flatten(1), qkv[:, : HQ * 64].half())
    for each, before in zip((keys, values), untouched, strict=True):
        for name, plane in each.planes().items():
            others = [row for row in range(ROWS) if row != 4]
            assert torch.equal(plane[others], before[name][others])
            assert not torch.equal(plane[4], before[name][4])


def test_a_token_has_the_same_bits_alone_and_no_tokens_store_nothing():
    rotation, _ = turned(48, [3, 9, 20])
    norms = HeadNorms(torch.full((48,), 0.7, device=DEVICE), torch.full((48,), 1.3, device=DEVICE), 1e-5)
    qkv = torch.randn(3, (HQ + 2 * HKV) * 48, device=DEVICE).half()
    both = [(store("q4_0", 48), store("q8_0", 48)) for _ in range(2)]
    rows = torch.arange(3, device=DEVICE)
    together = run(qkv, rotation, norms, rows, *both[0], codecs=("q4_0", "q8_0"), dim=48)
    for t in range(3):
        own = Rotation(rotation.cos_table, rotation.sin_table, rotation.positions[t : t + 1])
        alone = run(qkv[t : t + 1], own, norms, rows[t : t + 1], *both[1], codecs=("q4_0", "q8_0"), dim=48)
        assert torch.equal(alone[0], together[t])
    for first, second in zip(*both, strict=True):
        assert_equal_planes(second, first)
    none = Rotation(rotation.cos_table, rotation.sin_table, rotation.positions[:0])
    assert run(qkv[:0], none, norms, rows[:0], *both[1], codecs=("q4_0", "q8_0"), dim=48).shape == (0, HQ, 48)


def test_what_cannot_be_stored_is_refused_with_the_reason():
    assert HeadShape(4, 2, 64, "f16", "q4_0").refusal() is None
    assert HeadShape(4, 2, 64, "f16", "turbo4").refusal() == "no kernel that stores turbo4"
    assert HeadShape(4, 2, 24, "f16", "f16").refusal() == "no kernel that stores heads of 24 elements"
