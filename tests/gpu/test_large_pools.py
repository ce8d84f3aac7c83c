"""K/V pools past 2**31 elements on a CUDA device: every kernel finds blocks by offsets of 64 bits."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.attention_parts import EXACT_PART
from octavo.kernels.rows import Rotation
from octavo.kernels.triton.decode_tiles import DecodeTile
from octavo.kernels.triton.exact_attention import exact_tiles
from octavo.kernels.triton.head_rows import HeadShape, rotate_and_store_heads
from octavo.kernels.triton.paged_decode import StoredRows
from octavo.storage.codecs import CODECS
from tests.kernels.triton.exact_cases import attend
from tests.kernels.triton.prefill_cases import PrefillCase

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

HKV, DIM, BLOCK = 2, 128, 16
# Bytes of a row's codes are fewer than its elements: two thirds of the blocks lie past 2**31 of the smaller ones.
BLOCKS = {"f16": 3, "q8_0": 3, "q4_0": 6}


def case_of(codec, **settings):
    spare = BLOCKS[codec] * 2**31 // (HKV * DIM * BLOCK)
    return PrefillCase(
        hq=4, hkv=HKV, dim=DIM, k_codec=codec, v_codec=codec, spare_blocks=spare, device="cuda", **settings
    )


@pytest.mark.parametrize("codec", ["q8_0", "q4_0"])
def test_codes_are_decoded_wherever_they_lie(codec):
    case = case_of(codec, lengths=[900, 70])
    out = case.run(tile=DecodeTile(16, 1, 3), precise=False)
    assert case.decode.geometry.codes
    assert (out.double() - case.expected()).abs().max() < 5e-4
    out = case.run(precise=True)
    assert not case.decode.geometry.codes
    assert (out.double() - case.expected()).abs().max() < 5e-4


@pytest.mark.parametrize("codec", ["f16", "q8_0", "q4_0"])
def test_chunks_attend_over_blocks_wherever_they_lie(codec):
    case = case_of(codec, lengths=[900, 70], queries=[120, 3])
    assert (case.prefill(None).double() - case.expected()).abs().max() < 1e-3
    exact = attend(case, case.chunks(), tiles=exact_tiles(DIM, case.spec.bits), part=EXACT_PART)
    assert (exact.double() - case.expected()).abs().max() < 1e-3


@pytest.mark.parametrize("codec", ["q8_0", "q4_0"])
def test_codes_are_stored_wherever_they_belong(codec):
    num_rows = BLOCKS[codec] * 2**31 // (HKV * DIM)
    device = torch.device("cuda")
    stores = [CODECS[codec].allocate(num_rows, HKV, DIM, device) for _ in range(2)]
    rows = torch.tensor([0, num_rows // 3, num_rows // 2, num_rows - 1], device=device)
    qkv = torch.randn(len(rows), (4 + 2 * HKV) * DIM, device=device)
    table = torch.ones(1, DIM, device=device)
    still = Rotation(table, torch.zeros_like(table), torch.zeros(len(rows), dtype=torch.int64, device=device))
    shape = HeadShape(4, HKV, DIM, codec, codec)
    rotate_and_store_heads(
        shape, qkv, still, None, rows, *(StoredRows.of(store.planes()) for store in stores), torch.float32
    )
    for store, given in zip(stores, qkv.view(len(rows), -1, DIM)[:, 4:].split(HKV, 1), strict=True):
        expected = CODECS[codec].allocate(len(rows), HKV, DIM, device)
        expected.write(torch.arange(len(rows), device=device), given.contiguous())
        for name, plane in expected.planes().items():
            assert torch.equal(store.planes()[name][rows], plane)
