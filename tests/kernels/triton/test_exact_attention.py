"""Exact paged attention: equal to a float64 oracle, and a row's bits its own whatever is beside it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton import exact_attention, paged_prefill
from octavo.kernels.triton.exact_attention import ExactAttention, exact_tiles
from octavo.kernels.triton.prefill_plan import PrefillRows
from tests.kernels.triton.exact_cases import DEVICE, SMALL, attend, one_by_one
from tests.kernels.triton.prefill_cases import PrefillCase

TOLERANCE = 5e-4


def make(**settings):
    return PrefillCase(device=str(DEVICE), **settings)


SETTINGS = [
    {},
    {"window": 20, "sinks": True},
    {"keep": 5, "skip": 21},
    {"k_codec": "q8_0", "v_codec": "q4_0"},
    {"hq": 5},
]


@pytest.fixture(autouse=True)
def both_forms(monkeypatch):
    """Early tiles keep their precision, late ones are rounded."""
    monkeypatch.setattr(paged_prefill, "_PRECISE_END", 32)
    monkeypatch.setattr(paged_prefill, "_PRECISE_END_QUANTISED", 32)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_tokens_one_by_one_in_chunks_and_at_once_have_the_same_bits(settings, monkeypatch):
    case = make(**{"lengths": [67, 40], "queries": [5, 2], "hq": 2, "hkv": 1, "dim": 32, **settings})
    whole = attend(case, case.chunks())
    assert (whole.double() - case.expected()).abs().max() < 2 * TOLERANCE
    assert torch.equal(attend(case, case.chunks(3)), whole)
    assert torch.equal(attend(case, one_by_one(case), fixed=True), whole)
    monkeypatch.setattr(exact_attention, "_FULL", 1)  # each tile with all its parts
    assert torch.equal(attend(case, case.chunks(3)), whole)


@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31 - 1, None], ids=str)
def test_corrupt_block_ids_hide_their_columns_and_read_nothing(bad):
    case = make(lengths=[64, 40], queries=[3, 2], hq=2, hkv=1, dim=32, beyond=1)
    case.table[1] = case.num_blocks if bad is None else bad
    whole, expected = attend(case, case.chunks()), case.expected()
    assert whole.isfinite().all()
    assert (whole.double() - expected)[3:].abs().max() < 2 * TOLERANCE < (whole.double() - expected)[:3].abs().max()
    assert torch.equal(attend(case, one_by_one(case), fixed=True), whole)


def test_rounds_that_share_memory_change_no_bit():
    case = make(lengths=[70, 5, 40], queries=[12, 5, 9], hq=2, hkv=1, dim=32)
    whole = attend(case, case.chunks())
    kernel = ExactAttention(case.spec, DEVICE, tiles=SMALL, part=32, most_partial_bytes=1)
    kernel.plan(case.chunks()[0])
    assert kernel.rounds > 3
    assert torch.equal(attend(case, case.chunks(), most_partial_bytes=1), whole)


def test_a_step_of_single_tokens_keeps_its_launches_while_sequences_grow():
    case = make(lengths=[90, 200], queries=[1, 1], hq=4, hkv=2, dim=32)
    kernel = ExactAttention(case.spec, DEVICE, tiles=SMALL, part=32)
    (rows,) = case.chunks()
    fixtures = []
    for grown in range(30):
        kernel.plan(PrefillRows(rows.first_query, rows.num_tokens, rows.start + grown, rows.table_begin), fixed=True)
        fixtures.append(kernel.fixture)
    assert len(set(fixtures)) <= 2  # 10 parts, then 11: room for 16


def test_padding_rows_and_rows_of_nothing_are_left_alone():
    case = make(lengths=[30, 0, 100], queries=[1, 0, 1], hq=4, hkv=2, dim=32)
    (rows,) = case.chunks()
    out = attend(case, [rows], fixed=True)
    assert (out.double() - case.expected()).abs().max() < 2 * TOLERANCE
    rows.num_tokens[:] = 0
    assert attend(case, [rows], fixed=True).isnan().all()
    assert attend(case, [rows]).isnan().all()


def test_the_tile_that_serves_equals_the_oracle():
    case = make(lengths=[100], queries=[70], hq=2, hkv=1, dim=32)
    out = attend(case, case.chunks(), tiles=exact_tiles(32, 16), part=64)
    assert (out.double() - case.expected()).abs().max() < TOLERANCE
    assert (out.double() * 1.01 - case.expected()).abs().max() > TOLERANCE
