"""Each codec: what it keeps of a row, in how many bytes, and that a row's bits are its own affair."""

from __future__ import annotations

import math

import pytest
import torch

from octavo.storage.codecs import CODECS
from octavo.storage.codecs.turbo4 import block_of, bounds, hadamard, levels, signs

CPU = torch.device("cpu")
DIMS = [16, 48, 64, 80, 96, 128, 256]
ENCODED = ["q8_0", "q4_0", "turbo4"]
# ‖decoded - x‖ / ‖x‖ of many rows of normal data, whatever the head size: no more, and (a finer codec than it says it
# is would be in need of another name) no less.
ERROR = {
    "f32": (0.0, 0.0),
    "f16": (1.9e-4, 2.2e-4),
    "bf16": (1.5e-3, 1.8e-3),
    "q8_0": (0.0046, 0.0055),
    "q4_0": (0.074, 0.088),
    "turbo4": (0.091, 0.099),
}

every_codec = pytest.mark.parametrize("name", CODECS)
every_dim = pytest.mark.parametrize("dim", DIMS)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(name, dim, values, num_rows=64):
    """A store whose rows from 3 on hold `values`."""
    store = CODECS[name].allocate(num_rows, values.shape[1], dim, CPU)
    store.write_run(3, values)
    return store


@every_dim
@every_codec
def test_the_error_on_normal_data_is_what_the_codec_says(name, dim):
    values = draw(3000, 2, dim) * 7
    error = float((CODECS[name].round_trip(values) - values).norm() / values.norm())
    least, most = ERROR[name]
    assert least <= error <= most


@every_codec
def test_the_docstring_states_the_tested_error(name):
    stated = type(CODECS[name]).__doc__
    least, most = ERROR[name]
    if name in ENCODED:
        assert f"{least:g} to {most:g}" in stated
    elif most:
        assert f"{name} {least * 1e4:g}e-4 to {most * 1e4:g}e-4" in stated


@every_dim
@every_codec
def test_a_row_takes_the_bytes_that_are_allocated_for_it(name, dim):
    planes = CODECS[name].allocate(11, 3, dim, CPU).planes()
    assert sum(plane.nbytes for plane in planes.values()) == 11 * 3 * CODECS[name].bytes_per_row(dim)
    assert all(plane.shape[:2] == (11, 3) for plane in planes.values())


def test_bytes_of_a_row_are_those_of_its_codes_and_scales():
    expected = {"f32": 320, "f16": 160, "bf16": 160, "q8_0": 80 + 2 * 3, "q4_0": 40 + 2 * 3, "turbo4": 40 + 2 * 5}
    assert {name: codec.bytes_per_row(80) for name, codec in CODECS.items()} == expected


@every_dim
@every_codec
def test_every_way_of_reading_gives_what_round_trip_says(name, dim):
    values = draw(40, 3, dim, seed=1) * 10
    expected = CODECS[name].round_trip(values).transpose(0, 1)
    store = CODECS[name].allocate(64, 3, dim, CPU)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    store.write(order[:40], values)
    out = torch.empty(3, 1, dim)
    for i, row in enumerate(order[:40].tolist()):
        store.read(row, row + 1, out)
        assert torch.equal(out[:, 0], expected[:, i])
    store.write_run(24, values)
    run = torch.empty(3, 40, dim)
    store.read(24, 64, run)
    assert torch.equal(run, expected)
    blocks = torch.empty(3, 28, dim)
    store.read_blocks(torch.tensor([3, 2]), 16, blocks)
    assert torch.equal(blocks[:, :16], expected[:, 24:40]) and torch.equal(blocks[:, 16:], expected[:, 8:20])


@every_dim
@every_codec
def test_a_row_has_the_same_bits_in_any_company(name, dim):
    values = draw(57, 3, dim, seed=3) * torch.logspace(-3, 3, 57).view(57, 1, 1)
    together = filled(name, dim, values).planes()
    alone = CODECS[name].allocate(64, 3, dim, CPU)
    wide = CODECS[name].allocate(64, 3, dim, CPU)
    for i in range(57):
        alone.write_run(3 + i, values[i : i + 1])
    strided = torch.cat((draw(57, 2, dim), values), 1)[:, 2:]
    wide.write(torch.arange(3, 60), strided)
    for plane, rows in together.items():
        assert torch.equal(alone.planes()[plane][3:60], rows[3:60])
        assert torch.equal(wide.planes()[plane][3:60], rows[3:60])
    heads = [CODECS[name].round_trip(values[:, h : h + 1].contiguous()) for h in range(3)]
    assert torch.equal(torch.cat(heads, 1), CODECS[name].round_trip(values))


@pytest.mark.parametrize("name", ENCODED)
def test_16_bit_values_are_encoded_as_float32_has_them(name):
    values = draw(20, 2, 64).bfloat16()
    assert torch.equal(CODECS[name].round_trip(values), CODECS[name].round_trip(values.float()))


@every_dim
@every_codec
def test_what_is_not_finite_comes_back_as_such_and_spoils_no_other_head(name, dim):
    clean = draw(4, 3, dim)
    for poison in (float("nan"), float("inf"), -float("inf")):
        values = clean.clone()
        values[1, 2, dim - 1] = poison
        got, expected = CODECS[name].round_trip(values), CODECS[name].round_trip(clean)
        assert not got[1, 2, dim - 1].isfinite()
        assert torch.equal(got[[0, 2, 3]], expected[[0, 2, 3]])
        assert torch.equal(got[1, :2], expected[1, :2])


@every_codec
def test_zeros_and_numbers_too_small_for_a_scale_come_back_as_zeros(name):
    for tiny in (0.0, 1e-12):
        got = CODECS[name].round_trip(torch.full((2, 1, 64), tiny))
        assert (got.abs() <= 1.01 * tiny).all()


@pytest.mark.parametrize("name", ENCODED)
def test_small_scales_lose_precision_but_never_run_away(name):
    for exponent in range(-9, 0):
        values = draw(200, 1, 64, seed=4) * 10.0**exponent
        got = CODECS[name].round_trip(values)
        assert got.isfinite().all()
        assert (got - values).norm() <= 1.01 * values.norm()


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("dim", [8, 24, 40, 100])
def test_a_head_size_that_is_no_multiple_of_16_is_refused(name, dim):
    assert f"{dim} elements" in CODECS[name].refusal(dim)
    assert CODECS["f16"].refusal(dim) is None


def test_q8_0_is_the_nearest_multiple_of_each_groups_scale():
    values = draw(50, 1, 80, seed=5)
    planes = filled("q8_0", 80, values).planes()
    for group, (first, last) in enumerate([(0, 32), (32, 64), (64, 80)]):
        part = values[:, 0, first:last].double()
        scale = (part.abs().amax(-1, keepdim=True) / 127).half()
        assert torch.equal(planes["scales"][3:53, 0, group], scale[:, 0])
        codes = (part / scale.double()).round()
        assert torch.equal(planes["codes"][3:53, 0, first:last].double(), codes)


def test_q4_0_keeps_the_largest_element_of_each_group_whatever_its_sign():
    values = draw(50, 2, 64, seed=6)
    got = CODECS["q4_0"].round_trip(values)
    groups, decoded = values.view(50, 2, 2, 32), got.view(50, 2, 2, 32)
    where = groups.abs().argmax(-1, keepdim=True)
    assert torch.allclose(decoded.gather(-1, where), groups.gather(-1, where), rtol=5e-4)
    assert len(filled("q4_0", 64, values).planes()["codes"][3:53].unique()) > 150


def test_turbo4_keeps_the_neighbours_of_an_outlier_that_q4_0_loses():
    values = draw(500, 1, 128, seed=7)
    values[..., 17] = 60.0
    near = [i for i in range(32) if i != 17]
    lost = {}
    for name in ("turbo4", "q4_0"):
        got = CODECS[name].round_trip(values)
        lost[name] = float((got - values)[..., near].norm() / values[..., near].norm())
    assert lost["turbo4"] < 0.6 < 0.95 < lost["q4_0"]


def test_turbo4_turns_whole_blocks_and_back():
    for dim, block in ((16, 16), (48, 16), (64, 64), (80, 16), (96, 32), (128, 128), (256, 256), (512, 256)):
        assert block_of(dim) == block
    x = draw(5, 128).double()
    matrix = hadamard(torch.eye(128, dtype=torch.float64))
    assert torch.equal(matrix @ matrix, 128 * torch.eye(128, dtype=torch.float64))
    assert torch.allclose(hadamard(x), x @ matrix)


def test_turbo4s_signs_are_fixed_for_ever_and_balanced():
    drawn = signs(256, CPU)
    assert [int(sign) for sign in drawn[:16]] == [-1, 1, 1, -1, -1, -1, -1, 1, 1, -1, 1, -1, -1, -1, 1, -1]
    assert torch.equal(signs(64, CPU), drawn[:64])
    assert abs(float(drawn.sum())) < 48


def test_turbo4s_levels_are_the_means_of_what_lies_nearest_to_them():
    def density(x):
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def below(x):
        return (1 + math.erf(x / math.sqrt(2))) / 2

    edges = [-math.inf, *bounds(CPU).tolist(), math.inf]
    for level, low, high in zip(levels(CPU).tolist(), edges, edges[1:], strict=False):
        mean = (density(low) - density(high)) / (below(high) - below(low))
        assert level == pytest.approx(mean, abs=1e-6)
