"""Attention from projected heads in one kernel: what rotating and storing first, and then attending, gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton.decode_plan import DecodeRows
from octavo.kernels.triton.paged_decode import DecodeSpec, PagedDecode
from octavo.kernels.triton.projected_decode import LEAST_GROUP, MOST_ROWS, projects
from tests.kernels.triton.projected_cases import BLOCK, DEVICE, GPU, Step


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("heads", [(4, 2, 64), (5, 1, 64)], ids=str)
def test_sequences_of_any_length_are_attended_over_with_their_own_column(heads, normed, biased):
    step = Step([1, 130, 17, 64, 65], heads=heads, normed=normed, biased=biased)
    step.plan()
    step.check()


@pytest.mark.parametrize("dim", [128, 256])
def test_chunks_of_long_sequences_are_merged(dim):
    step = Step([200, 40], heads=(4, 2, dim))
    step.plan(chunk=64, fixed=True)
    assert step.decode.geometry.merges
    step.check()


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="torch sees no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [(16, 8, 128), (32, 8, 128), (32, 8, 64), (24, 4, 256)], ids=str)
@pytest.mark.parametrize("lengths", [(5000,), (30_000,), (256, 257), (700, 3, 8191, 64, 1, 1025, 100, 2048)], ids=str)
def test_long_contexts_agree_on_the_device(lengths, heads, dtype):
    step = Step(lengths, heads=heads, dtype=dtype)
    step.plan(fixed=True)
    step.check()


def test_only_a_window_is_seen():
    step = Step([200, 30], window=70)
    step.plan()
    step.check()
    narrow, wide = step.run(at_once=True)[0], Step([200, 30])
    wide.plan()
    assert not torch.allclose(narrow[0], wide.run(at_once=True)[0][0], atol=1e-2)


def test_padding_gets_nothing_and_a_token_without_a_row_is_stored_nowhere():
    step = Step([40, 40, 40])
    step.rows[1] = -1
    step.plan()
    expected, k, v = step.run(at_once=True)
    for plane, before in ((k, step.k), (v, step.v)):
        changed = (plane != before).flatten(1).any(1).nonzero().flatten()
        assert changed.tolist() == sorted(step.rows[[0, 2]].tolist())
    ones = np.array([1, 1, 0])
    columns = step.lengths * ones
    step.decode.plan(DecodeRows(np.arange(3), ones, columns * 0, columns, step.begins), fixed=True, capacity=3)
    out = step.run(at_once=True)[0]
    assert torch.equal(out[:2], expected[:2])
    assert out[2].isnan().all()


@pytest.mark.parametrize("wrong", [-5, 2**31 - 1])
def test_blocks_that_do_not_exist_are_not_read(wrong):
    step = Step([60])
    step.table[1] = wrong
    step.plan()
    out, expected = (step.run(at_once=each)[0] for each in (True, False))
    assert (out - expected).abs().max() < 1e-3


def test_steps_of_few_rows_are_served_and_those_that_need_more_are_not():
    heads = (2 * LEAST_GROUP, 2, 64)
    for count in (MOST_ROWS, MOST_ROWS + 1):
        step = Step([40] * count, heads=heads)
        step.plan()
        assert projects(step.decode) == (count == MOST_ROWS)
    step = Step([40], heads=heads)
    one = np.array([1])
    step.decode.plan(DecodeRows(one * 0, one * 2, one * 0, one * 40, one * 0))
    assert not projects(step.decode)
    step.decode.plan(DecodeRows(one * 0, one, one * 0, one * 40, one * 0, keep=one * 4, skip=one * 2))
    assert not projects(step.decode)
    few = Step([40], heads=(LEAST_GROUP - 1, 1, 64))
    few.plan()
    assert not projects(few.decode)
    quantised = PagedDecode(DecodeSpec(2 * LEAST_GROUP, 2, 64, 64, BLOCK, "q8_0", "f16", 0.1), DEVICE)
    quantised.plan(DecodeRows(one * 0, one, one * 0, one * 40, one * 0))
    assert not projects(quantised)
