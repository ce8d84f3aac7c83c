"""The decode kernel for quantised K and V on a CUDA device: every group size, mask and tile, and what it leaves out."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton.decode_tiles import DecodeTile
from tests.kernels.triton.decode_cases import DecodeCase

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

LENGTHS = [700, 1300, 0, 513]


def error(case, columns=16, **plan):
    """Largest absolute error of a result that the kernel for codes gave."""
    out = case.run(tile=DecodeTile(columns, 1, 3), precise=False, **plan)
    assert case.decode.geometry.codes
    return (out.double() - case.expected()).abs().max()


@pytest.mark.parametrize("columns", [16, 32])
@pytest.mark.parametrize(
    "codecs", [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"), ("q4_0", "q8_0")], ids="-".join
)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_codes_equal_the_oracle(dim, codecs, columns):
    case = DecodeCase(LENGTHS, hq=12, hkv=2, dim=dim, k_codec=codecs[0], v_codec=codecs[1], device="cuda")
    assert error(case, columns) < 5e-4
    assert error(case, columns, chunk=128) < 5e-4


@pytest.mark.parametrize("group", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_codes_equal_the_oracle_for_every_group_and_block_size(group, block_size):
    case = DecodeCase(
        LENGTHS, hq=2 * group, hkv=2, dim=128, block_size=block_size, k_codec="q8_0", v_codec="q4_0", device="cuda"
    )
    assert error(case, 32, chunk=320) < 5e-4


@pytest.mark.parametrize("codec", ["q8_0", "q4_0"])
@pytest.mark.parametrize(
    "settings",
    [{"window": 600}, {"sinks": True}, {"keep": 5, "skip": 37}, {"keep": 5, "skip": 37, "window": 620, "sinks": True}],
    ids=["window", "sinks", "gap", "all"],
)
def test_codes_equal_the_oracle_under_masks_and_several_queries(settings, codec):
    case = DecodeCase(
        [700, 1300, 650],
        queries=[3, 1, 4],
        hq=4,
        hkv=2,
        dim=64,
        k_codec=codec,
        v_codec=codec,
        device="cuda",
        **settings,
    )
    assert error(case, 32, chunk=256) < 5e-4


def test_queries_of_very_different_sizes_keep_their_precision():
    case = DecodeCase(LENGTHS, hq=4, hkv=2, dim=128, k_codec="q8_0", v_codec="q8_0", device="cuda")
    case.q *= torch.tensor([1e-3, 1.0, 1e-2, 3.0])[None, :, None]
    case.q[2] = 0
    assert error(case) < 5e-4


def test_a_corrupt_block_id_hides_its_columns_only():
    case = DecodeCase([640], hq=4, hkv=2, dim=128, k_codec="q4_0", v_codec="q8_0", device="cuda", beyond=1)
    case.table[3] = case.num_blocks
    case.table[7] = -5
    for side in (0, 1):
        columns = torch.arange(640)
        case.decoded[side][0] = case.decoded[side][0][(columns // 16 != 3) & (columns // 16 != 7)]
    case.lengths = [640 - 32]
    assert error(case, 32, chunk=128) < 5e-4


def test_short_sequences_take_the_precise_kernel():
    case = DecodeCase([20, 900], hq=4, hkv=2, dim=128, k_codec="q8_0", v_codec="q8_0", device="cuda")
    assert (case.run().double() - case.expected()).abs().max() < 5e-4
    assert not case.decode.geometry.codes
