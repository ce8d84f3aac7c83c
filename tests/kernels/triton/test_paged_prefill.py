"""Paged prefill against a float64 oracle: under Triton's interpreter, or for real where there is a GPU."""

from __future__ import annotations

from itertools import product

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton import paged_prefill
from octavo.kernels.triton.paged_prefill import best_tile
from tests.kernels.triton.prefill_cases import PrefillCase

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 5e-4


def make(**settings):
    return PrefillCase(device=DEVICE, **settings)


def error(case, **given):
    return (case.prefill(**given).double() - case.expected()).abs().max().item()


@pytest.fixture(params=[0, 1 << 20], ids=["rounded", "precise"])
def precision(request, monkeypatch):
    """Every tile takes one of the two forms."""
    for name in ("_PRECISE_END", "_PRECISE_END_QUANTISED"):
        monkeypatch.setattr(paged_prefill, name, request.param)


@pytest.mark.parametrize("codecs", list(product(("f16", "q8_0", "q4_0"), repeat=2)), ids="-".join)
def test_every_pairing_of_codecs_equals_the_oracle_on_what_they_decode_to(codecs):
    case = make(lengths=[70, 9, 16], queries=[30, 9, 2], hq=3, hkv=1, k_codec=codecs[0], v_codec=codecs[1])
    assert error(case) < TOLERANCE


@pytest.mark.parametrize("codec", ["q8_0", "q4_0"])
def test_late_tiles_of_codes_are_rounded_within_the_tolerance(codec):
    case = make(lengths=[1040], queries=[12], hq=2, hkv=1, k_codec=codec, v_codec=codec)
    assert error(case) < TOLERANCE


@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 256])
def test_all_head_sizes_are_served(dim):
    assert error(make(lengths=[40], queries=[25], dim=dim, hq=2, hkv=1)) < TOLERANCE


@pytest.mark.parametrize("dim", [16, 80, 96])
@pytest.mark.parametrize("codec", ["q8_0", "q4_0"])
def test_groups_of_codes_that_straddle_the_halves_of_a_head_are_scaled_right(dim, codec, precision):
    case = make(lengths=[30], queries=[3], dim=dim, hq=2, hkv=1, k_codec=codec, v_codec=codec, seed=1)
    assert error(case) < 2 * TOLERANCE  # a few rounded values of a row do not average out


@pytest.mark.parametrize("hq", [1, 5, 7, 16])
def test_all_groups_of_query_heads_are_served(hq):
    assert error(make(lengths=[40, 11], queries=[20, 11], hq=hq, hkv=1, dim=32)) < TOLERANCE


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_all_block_sizes_are_served(block_size):
    assert error(make(lengths=[150, 64, 9], queries=[40, 20, 9], block_size=block_size, dim=32)) < TOLERANCE


def test_results_that_are_one_percent_off_would_fail():
    case = make(lengths=[60], queries=[40], dim=32)
    out, expected = case.prefill().double(), case.expected()
    assert (out * 1.01 - expected).abs().max() > TOLERANCE > (out - expected).abs().max()


@pytest.mark.parametrize("window", [None, 1, 16, 30])
@pytest.mark.parametrize("gap", [{}, {"keep": 5, "skip": 21}], ids=["whole", "gap"])
def test_windows_gaps_and_sinks_hide_what_they_should(window, gap, precision):
    case = make(lengths=[90], queries=[37], hq=3, hkv=1, dim=32, window=window, sinks=True, **gap)
    assert error(case) < 2 * TOLERANCE


def test_rows_of_no_chunk_are_left_alone_and_chunks_of_nothing_do_nothing():
    case = make(lengths=[30, 0, 20], queries=[10, 0, 12], dim=32)
    rows = case.chunks()[0]
    rows.num_tokens[2] = 9
    case.chunks = lambda parts: [rows]
    out = case.prefill()
    assert out[19:].isnan().all()
    assert (out[:10].double() - case.expected()[:10]).abs().max() < TOLERANCE
    rows.num_tokens[:] = 0
    assert case.prefill().isnan().all()


@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31 - 1, None], ids=str)
def test_corrupt_block_ids_hide_their_columns_and_read_nothing(bad, precision):
    case = make(lengths=[64, 40], queries=[8, 8], dim=32, beyond=1)
    bad = case.num_blocks if bad is None else bad
    case.table[1] = bad
    out, expected = case.prefill().double(), case.expected()
    assert out.isfinite().all()
    assert (out[8:] - expected[8:]).abs().max() < 2 * TOLERANCE
    assert (out[:8] - expected[:8]).abs().max() > 2 * TOLERANCE
    case.table[:4] = bad  # a sequence that sees nothing at all
    assert not case.prefill()[:8].any()


@pytest.mark.parametrize("settings", [{}, {"window": 40}, {"sinks": True}, {"keep": 5, "skip": 21}], ids=str)
def test_parts_of_long_rows_are_merged_and_what_was_there_before_is_not(settings, precision):
    case = make(lengths=[100, 70], queries=[45, 9], hq=3, hkv=1, dim=48, **settings)
    assert error(case, part=32, poison=True) < 2 * TOLERANCE


def test_a_sequence_that_sees_nothing_in_any_part_gets_zeros():
    case = make(lengths=[64], queries=[16], dim=32, sinks=True)
    case.table[:4] = -1
    assert not case.prefill(part=16, poison=True).any()


@pytest.mark.parametrize("settings", [{}, {"window": 20, "sinks": True}, {"k_codec": "q8_0", "v_codec": "q4_0"}])
def test_a_row_has_the_same_bits_however_its_prompt_is_cut(settings, monkeypatch):
    monkeypatch.setattr(paged_prefill, "_PRECISE_END", 32)
    monkeypatch.setattr(paged_prefill, "_PRECISE_END_QUANTISED", 32)
    case = make(lengths=[85, 13], queries=[85, 13], hq=3, hkv=1, dim=32, **settings)
    whole = case.prefill(part=48)
    assert not whole.isnan().any()
    for parts in (2, 3, 7):
        assert torch.equal(case.prefill(parts=parts, part=48), whole)


def test_half_precision_queries_and_outputs_lose_half_a_unit_in_the_last_place():
    case = make(lengths=[70], queries=[50], dim=32, q_dtype=torch.float16, out_dtype=torch.float16)
    assert error(case) < TOLERANCE + case.expected().abs().max().item() * 2**-11


def test_the_tiles_that_were_measured_are_served():
    assert error(make(lengths=[140], queries=[140], hq=2, hkv=1, dim=32), tile=best_tile(64, 16)) < TOLERANCE
