"""Fused paged decode against a float64 oracle: under Triton's interpreter, or for real where there is a GPU."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from tests.combinations import by_day
from tests.kernels.triton.decode_cases import DecodeCase

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 5e-4


def error(case, **plan):
    return (case.run(**plan).double() - case.expected()).abs().max().item()


def make(**settings):
    return DecodeCase(device=DEVICE, **settings)


@pytest.mark.parametrize("codecs", list(product(("f16", "q8_0", "q4_0"), repeat=2)), ids="-".join)
def test_every_pairing_of_codecs_equals_the_oracle_on_what_they_decode_to(codecs):
    case = make(lengths=[150, 1, 33], hq=5, hkv=1, k_codec=codecs[0], v_codec=codecs[1])
    assert error(case, chunk=64) < TOLERANCE
    assert case.work.num_slots > 0


@pytest.mark.parametrize(("dim", "codec"), by_day((16, 80, 96, 128, 256), ("q8_0", "q4_0")))
def test_groups_of_codes_that_straddle_the_halves_of_a_head_are_scaled_right(dim, codec):
    assert error(make(lengths=[70, 9], dim=dim, k_codec=codec, v_codec=codec)) < TOLERANCE


@pytest.mark.parametrize(("dim", "codec"), by_day((64, 128, 256), ("q8_0", "q4_0")))
def test_codes_of_many_columns_are_read_as_words_and_rounded_within_the_tolerance(dim, codec):
    case = make(lengths=[530, 517], dim=dim, hq=3, hkv=1, k_codec=codec, v_codec=codec)
    assert error(case, chunk=256) < TOLERANCE
    assert not case.decode.geometry.precise


@pytest.mark.parametrize(("dim", "hq"), by_day((64, 80, 96, 128, 256), (1, 3, 5, 7, 16)))
def test_all_head_sizes_and_groups_are_served(dim, hq):
    assert error(make(lengths=[75, 20], dim=dim, hq=hq, hkv=1)) < TOLERANCE


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_all_block_sizes_are_served(block_size):
    case = make(lengths=[300, 64, 65, 1], block_size=block_size)
    assert error(case, chunk=128) < TOLERANCE


def test_results_that_are_one_percent_off_would_fail():
    case = make(lengths=[37, 90])
    out, expected = case.run().double(), case.expected()
    assert (out * 1.01 - expected).abs().max() > TOLERANCE > (out - expected).abs().max()


def test_empty_sequences_and_negative_lengths_give_zeros_and_padding_is_left_alone():
    case = make(lengths=[0, 40, -7, 5], queries=[1, 1, 1, 0])
    out = case.run(capacity=16)
    assert torch.equal(out[[0, 2]], torch.zeros_like(out[[0, 2]]))
    assert (out.double() - case.expected()).abs().max() < TOLERANCE


def test_sinks_take_their_part_of_the_weight_but_not_of_empty_sequences():
    case = make(lengths=[1, 200, 0], sinks=True)
    assert error(case, chunk=64) < TOLERANCE


@pytest.mark.parametrize("window", [1, 16, 17, 40])
def test_a_window_moves_the_first_visible_column(window):
    assert error(make(lengths=[200, 40, 16, 1], window=window)) < TOLERANCE


@pytest.mark.parametrize("window", [None, 30])
def test_several_query_rows_see_causally(window):
    case = make(lengths=[130, 8, 5, 9], queries=[8, 8, 1, 3], hq=6, window=window, sinks=True)
    assert error(case, chunk=64) < TOLERANCE


@pytest.mark.parametrize("queries", [[1, 1, 1], [4, 2, 1]])
@pytest.mark.parametrize("window", [None, 100])
def test_columns_that_a_context_shift_has_left_behind_stay_hidden(queries, window):
    case = make(lengths=[120, 30, 4], queries=queries, keep=5, skip=21, window=window)
    assert error(case, chunk=64) < TOLERANCE


def test_float32_storage_keeps_float32_precision():
    assert error(make(lengths=[70, 5], k_codec="f32", v_codec="f32")) < 1e-5


def test_half_precision_queries_and_outputs_lose_half_a_unit_in_the_last_place():
    case = make(lengths=[70, 5], q_dtype=torch.float16, out_dtype=torch.float16)
    assert error(case) < TOLERANCE + case.expected().abs().max().item() * 2**-11


def test_weights_are_rounded_once_only_where_many_average_out():
    case = make(lengths=[100], q_dtype=torch.float16)
    assert error(case) < TOLERANCE
    assert not case.decode.geometry.precise
    assert error(make(lengths=[12], q_dtype=torch.float16)) < 5e-6


MANY_ROWS = {
    "group 16": {"hq": 16, "hkv": 1},
    "dim 256": {"hq": 8, "hkv": 1, "dim": 256},
    "codes": {"hq": 14, "hkv": 1, "dim": 128, "k_codec": "q8_0", "v_codec": "q4_0", "window": 30},
}


@pytest.mark.parametrize(("name", "sinks"), by_day(tuple(MANY_ROWS), (False, True)))
def test_more_query_rows_than_a_tile_holds_equal_the_oracle(name, sinks):
    case = make(lengths=[70, 9], queries=[8, 3], sinks=sinks, **MANY_ROWS[name])
    out, expected = case.run(chunk=64).double(), case.expected()
    assert (out - expected).abs().max() < TOLERANCE < (out * 1.01 - expected).abs().max()


@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31 - 1, None], ids=str)
def test_corrupt_block_ids_hide_their_columns_and_read_nothing(bad):
    case = make(lengths=[64, 48], beyond=1)
    case.table[1] = case.num_blocks if bad is None else bad
    out = case.run().double()
    expected = case.expected()
    assert out.isfinite().all()
    assert (out[1] - expected[1]).abs().max() < TOLERANCE
    assert (out[0] - expected[0]).abs().max() > TOLERANCE


def test_a_plan_that_is_carried_on_gives_what_a_new_one_gives():
    case = make(lengths=[500, 170], hq=2, hkv=1, dim=32, q_dtype=torch.float16)
    rows, decode = case.rows, None
    for shorter in (40, 17, 1, 0):
        columns = rows.columns - shorter
        case.rows = type(rows)(rows.first_query, rows.num_queries, rows.first_column, columns, rows.table_begin)
        carried = case.run(decode=decode)
        decode = case.decode
        assert (carried - case.run()).abs().max() < 1e-4
    assert (decode.plans_built, decode.plans_reused) == (1, 3)


def test_a_sequence_that_shrinks_below_its_last_chunk_is_cut_anew():
    case = make(lengths=[500, 170], hq=2, hkv=1, dim=32)
    rows = case.rows
    case.run()
    columns = rows.columns - 160
    case.rows = type(rows)(rows.first_query, rows.num_queries, rows.first_column, columns, rows.table_begin)
    assert torch.equal(case.run(decode=case.decode), case.run())


def test_poisoned_partial_results_of_earlier_steps_are_not_merged():
    case = make(lengths=[400, 30])
    first = case.run(chunk=64)
    case.decode._partial.fill_(float("nan"))
    case.decode._lse.fill_(float("nan"))
    assert torch.equal(case.run(chunk=64, decode=case.decode), first)


def test_no_two_chunks_share_a_column_and_none_is_left_out():
    case = make(lengths=[700, 130, 1])
    case.run(chunk=128)
    for first, last in pairwise(case.work.first_items):
        pieces = case.work.items[first:last]
        assert (pieces[1:, 2] == pieces[:-1, 3]).all()
        assert pieces[-1, 3] == pieces[0, 6]
