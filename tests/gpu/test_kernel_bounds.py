"""Every kernel once or twice at odd sizes, in memory of just its operands' size: what `scripts/memcheck.sh` watches.

Run by itself it only compares results. Under compute-sanitizer, with torch's caching of memory off, an access beyond an
operand is an error.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.engine.sampler import Sampler, SamplerRow
from octavo.engine.sampling_device import draw_settings
from octavo.engine.sampling_random import TokenNoise
from octavo.engine.sampling_workspace import Workspace
from octavo.kernels.attention_parts import EXACT_PART
from octavo.kernels.draws import draw_tokens
from octavo.kernels.greedy import greedy_tokens_by_parts
from octavo.kernels.rows import HalfNormed, HeadNorms, Rotation
from octavo.kernels.triton.exact_attention import exact_tiles
from octavo.kernels.triton.fused_rows import add_rms_norm_, gate
from octavo.kernels.triton.gated_product import GatedTile, multiply_gated
from octavo.kernels.triton.head_rows import HeadShape, rotate_and_store_heads
from octavo.kernels.triton.launch import has_warpgroup_products
from octavo.kernels.triton.paged_decode import StoredRows
from octavo.kernels.triton.skinny_gemm import SkinnyScratch, SkinnyTile, multiply, multiply_codes
from octavo.kernels.triton.skinny_pack import CodeMatrix, pack_codes, unpack_codes
from octavo.kernels.triton.step_tokens import pick_tokens
from octavo.kernels.triton.streamed_table import StreamedTile
from octavo.sampling_params import SamplingParams
from octavo.storage.codecs import CODECS
from tests.kernels.triton.decode_cases import DecodeCase
from tests.kernels.triton.exact_cases import attend, one_by_one
from tests.kernels.triton.prefill_cases import PrefillCase
from tests.kernels.triton.projected_cases import Step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

CUDA = torch.device("cuda")
HOPPER = torch.cuda.is_available() and has_warpgroup_products(CUDA)
CASES = {
    "f16 d128": {"dim": 128},
    "bf16 d256 window": {"k_codec": "bf16", "v_codec": "bf16", "dim": 256, "window": 50},
    "q4_0 and q8_0 d64": {"k_codec": "q4_0", "v_codec": "q8_0", "dim": 64},
    "q8_0 and q4_0 d64": {"k_codec": "q8_0", "v_codec": "q4_0", "dim": 64},
    "q8_0 and q4_0 d128": {"k_codec": "q8_0", "v_codec": "q4_0", "dim": 128},
    "q4_0 and f16 d96 group 7": {"k_codec": "q4_0", "dim": 96, "hq": 14},
    "sinks, blocks of 64": {"sinks": True, "block_size": 64},
}


@pytest.mark.parametrize("name", CASES)
def test_decode_of_single_tokens(name):
    case = DecodeCase([700, 1, 0, 33, 16], device="cuda", spare_blocks=0, **CASES[name])
    assert (case.run().double() - case.expected()).abs().max() < 1e-3


@pytest.mark.parametrize("name", CASES)
def test_verification_of_a_few_tokens(name):
    case = DecodeCase([700, 8, 33], [8, 3, 2], device="cuda", spare_blocks=0, **CASES[name])
    assert (case.run().double() - case.expected()).abs().max() < 1e-3


@pytest.mark.parametrize("name", CASES)
def test_prefill_of_chunks(name):
    case = PrefillCase([413, 31, 9], [200, 31, 1], device="cuda", spare_blocks=0, **CASES[name])
    assert (case.prefill(None).double() - case.expected()).abs().max() < 2e-3
    assert (case.prefill(None, part=256).double() - case.expected()).abs().max() < 2e-3


@pytest.mark.parametrize("name", CASES)
def test_exact_rows_of_chunks_and_of_single_tokens(name):
    case = PrefillCase([713, 31, 9], [200, 31, 1], device="cuda", spare_blocks=0, **CASES[name])
    tiles = exact_tiles(case.dim, case.spec.bits)
    whole = attend(case, case.chunks(), tiles=tiles, part=EXACT_PART)
    assert (whole.double() - case.expected()).abs().max() < 2e-3
    singles = attend(case, one_by_one(case)[-3:], tiles=tiles, part=EXACT_PART, fixed=True)
    seen = ~singles.isnan()
    assert seen.any()
    assert torch.equal(singles[seen], whole[seen])


@pytest.mark.parametrize("codec", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("dim", [64, 96, 128])
def test_heads_are_turned_and_stored_in_the_first_and_the_last_row(dim, codec):
    hq, hkv, rows = 6, 2, 9
    qkv = torch.randn(3, (hq + 2 * hkv) * dim, device=CUDA).bfloat16()
    keys, values, expected = (CODECS[codec].allocate(rows, hkv, dim, CUDA) for _ in range(3))
    angle = torch.rand(5, dim, device=CUDA)
    rotation = Rotation(angle.cos(), angle.sin(), torch.tensor([4, 0, 2], device=CUDA))
    places = torch.tensor([rows - 1, 0, 4], device=CUDA)
    norms = HeadNorms(*torch.rand(2, dim, device=CUDA), 1e-6)
    planes = [StoredRows.of(each.planes()) for each in (keys, values)]
    q = rotate_and_store_heads(
        HeadShape(hq, hkv, dim, codec, codec), qkv, rotation, norms, places, *planes, torch.float32
    )
    assert q.shape == (3, hq, dim) and q.isfinite().all()
    expected.write(places, qkv.view(3, -1, dim)[:, hq + hkv :].float())
    for name, plane in expected.planes().items():
        assert torch.equal(values.planes()[name][places], plane[places])


@pytest.mark.parametrize("vocab_size", [700, 50_001])
def test_tokens_are_drawn_and_picked(vocab_size):
    params = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 2.0, "min_p": 0.2},
        {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 1.0, "top_k": 300},
    ]
    rows = [
        SamplerRow(SamplingParams(**each), seed=7, choice=0, position=i, prompt_token_ids=[], output_token_ids=[])
        for i, each in enumerate(params)
    ]
    logits = torch.randn(len(rows), vocab_size, generator=torch.Generator().manual_seed(0)) * 3
    hashes = TokenNoise(vocab_size, Workspace(CUDA)).hashes
    drawn = draw_tokens(logits.to(CUDA), hashes, draw_settings(rows, vocab_size, CUDA))
    assert drawn.tolist() == Sampler(vocab_size, "cpu").sample(logits, rows).token_ids
    best = torch.empty(len(rows), dtype=torch.int64, device=CUDA)
    assert greedy_tokens_by_parts(logits.to(CUDA), best).tolist() == logits.argmax(1).tolist()
    given, sources = torch.tensor([[5, 6, 7], [-1, 4, 0]], device=CUDA)
    picked = torch.empty(3, dtype=torch.int64, device=CUDA)
    pick_tokens[(1,)](picked, given, sources, best, 3, BLOCK=4)
    assert picked.tolist() == [5, best[4].item(), best[0].item()]


def test_rows_are_normalised_and_gated():
    x, y = torch.randn(3, 900, device=CUDA), torch.randn(3, 900, device=CUDA).bfloat16()
    out = add_rms_norm_(x, y, torch.rand(900, device=CUDA), 1e-6, torch.bfloat16)
    assert out.isfinite().all()
    assert gate(torch.randn(3, 1800, device=CUDA).bfloat16(), False, torch.bfloat16).isfinite().all()


@pytest.mark.parametrize("tile", [SkinnyTile("reduce", 4, 8, 64, 2, splits=3), SkinnyTile("dot", 16, 32, 32, 4, 2)])
def test_few_rows_are_multiplied(tile):
    x, weight = torch.randn(3, 100, device=CUDA), torch.randn(37, 100, device=CUDA).half()
    scratch, out = SkinnyScratch(CUDA), torch.empty(3, 37, device=CUDA)
    scratch.reserve(tile, 3, 37)
    multiply(x, weight, out, tile, scratch)
    want = x.half().float() @ weight.float().t()
    assert (out - want).norm() < 1e-4 * want.norm()


def test_a_row_is_gated_as_it_is_multiplied():
    x, weight = torch.randn(1, 100, device=CUDA), torch.randn(2 * 37, 100, device=CUDA).bfloat16()
    got = multiply_gated(x, weight, False, GatedTile(8, 64, 2))
    want = gate((x.bfloat16().float() @ weight.float().t()).bfloat16(), False, torch.float32)
    assert (got.float() - want).norm() < 2e-2 * want.norm()


@pytest.mark.parametrize("k", [100, 96])
def test_a_sum_is_left_half_normed_and_multiplied(k):
    """Of the tile's rows, of the weight's and of the columns, some are not there (k of 96: all columns are)."""
    x, first, second = torch.randn(1, k, device=CUDA), *torch.randn(2, 37, k, device=CUDA).half()
    total, norm = torch.randn(1, 37, device=CUDA), torch.rand(37, device=CUDA) + 0.5
    tile, scratch = SkinnyTile("reduce", 2, 8, 32, 2, 2, lets_in=False), SkinnyScratch(CUDA)
    half = tile.half_normed(total, torch.float16, 1e-6)
    want = total + x.half().float() @ first.float().t()
    multiply(x, first, total, tile, scratch, add=True, leaves=(norm, half))
    assert torch.allclose(total, want, atol=1e-3)
    assert torch.allclose(half.weighted.float(), want * norm, rtol=1e-3, atol=1e-3)
    out = torch.empty(1, k, device=CUDA)
    normed = want * norm / (want.square().mean() + 1e-6).sqrt()
    multiply(half, second.t().contiguous(), out, tile, scratch)
    want = normed @ second.float()
    assert (out - want).norm() < 5e-3 * want.norm()


@pytest.mark.parametrize("k", [100, 96])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_are_half_normed_are_gated(rows, k):
    half = HalfNormed(torch.randn(rows, k, device=CUDA).bfloat16(), torch.rand(rows, 5, device=CUDA) * k, 1e-6)
    weight = torch.randn(2 * 37, k, device=CUDA).bfloat16()
    got = multiply_gated(half, weight, True, GatedTile(8, 32, 2, ahead=2))
    normed = half.weighted.float() / (half.squares.sum(1, keepdim=True) / k + 1e-6).sqrt()
    want = gate((normed @ weight.float().t()).bfloat16(), True, torch.float32)
    assert (got.float() - want).norm() < 2e-2 * want.norm()


STREAMED = [
    (33, StreamedTile(64, 64, 64, 4)),
    (64, StreamedTile(64, 32, 64, 6, 3)),
    (65, StreamedTile(128, 64, 64, 4)),  # eight warps from here on
    (128, StreamedTile(128, 64, 64, 3, 2)),
    (3, StreamedTile(64, 64, 64, 6, 4)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(("rows", "tile"), STREAMED, ids=str)
def test_rows_are_multiplied_by_weights_that_stream(rows, tile):
    from octavo.kernels.triton.streamed_product import multiply_streamed

    n, k = 100, 1000
    x, weight = torch.randn(rows, k, device=CUDA).bfloat16(), torch.randn(2 * n, k, device=CUDA).bfloat16() / 30
    want = x.float() @ weight.float().t()
    parts = multiply_streamed(x, weight, tile, torch.float32).view(tile.splits, rows, 2 * n)
    assert (parts.sum(0) - want).norm() < 1e-4 * want.norm()
    if tile.splits == 1:
        got = multiply_streamed(x, weight, tile, torch.bfloat16, gelu=False)
        want = gate(want.bfloat16(), False, torch.float32)
        assert (got.float() - want).norm() < 2e-2 * want.norm()


@pytest.mark.parametrize("heads", [(5, 1, 64), (4, 2, 128)], ids=str)
@pytest.mark.parametrize("lengths", [(1, 130, 17, 64), (700,)], ids=str)
def test_heads_are_turned_and_stored_where_they_are_attended_over(lengths, heads):
    step = Step(lengths, heads=heads, biased=True)
    step.plan(fixed=True)
    step.check()
    step.plan(chunk=64)
    step.check()


def test_few_rows_are_multiplied_by_codes():
    n, k, group = 40, 256, 32
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device=CUDA)
    matrix = CodeMatrix(codes, torch.rand(n, k // group, device=CUDA).half().float(), None, 8, 4, group)
    packed = pack_codes([matrix], CUDA)
    x, out = torch.randn(3, k, device=CUDA), torch.empty(3, n, device=CUDA)
    tile, scratch = SkinnyTile("swapped", 16, 64, 0, 4, 2, splits=2), SkinnyScratch(CUDA)
    scratch.reserve(tile, 3, n)
    multiply_codes(x, packed, out, tile, scratch)
    want = x @ unpack_codes(packed, slice(0, n)).t()
    assert (out - want).norm() < 1e-2 * want.norm()
