"""Exact kernels on a CUDA device: a row's bits are its own, whatever is computed beside it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.attention_parts import EXACT_PART
from octavo.kernels.triton import exact_attention
from octavo.kernels.triton.exact_attention import exact_tiles
from octavo.kernels.triton.skinny_gemm import SkinnyScratch
from octavo.layers.linear.codes_route import CodesRoute
from octavo.layers.linear.skinny_route import SkinnyWeight
from tests.kernels.triton.exact_cases import attend, one_by_one
from tests.kernels.triton.prefill_cases import PrefillCase
from tests.layers.test_gpu_routes import mlx_shard
from tests.layers.test_linear_routes import shard_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dim": 64, "hq": 12},
        {"dim": 256, "hq": 6, "window": 600, "sinks": True},
        {"hq": 10, "keep": 32, "skip": 64},
        {"k_codec": "bf16", "v_codec": "bf16"},
        {"k_codec": "q8_0", "v_codec": "q8_0"},
        {"k_codec": "q8_0", "v_codec": "q4_0"},
        {"k_codec": "q4_0", "v_codec": "q8_0", "dim": 64},
        {"dim": 80, "hq": 6, "block_size": 64},
        {"dim": 96, "hq": 32, "block_size": 32},
    ],
    ids=str,
)
def test_attention_has_the_same_bits_alone_batched_in_chunks_and_token_by_token(settings, monkeypatch):
    given = {"hq": 4, "hkv": 2, "dim": 128, "device": "cuda", **settings}
    case = PrefillCase([1600, 1100, 700, 90], queries=[300, 257, 9, 20], **given)
    serve = {"tiles": exact_tiles(case.dim, case.spec.bits), "part": EXACT_PART}
    whole = attend(case, case.chunks(), **serve)
    bound = 1e-3 if "bf16" in settings.values() else 5e-4
    assert (whole.double() - case.expected()).abs().max() < bound
    for parts in (3, 10):
        assert torch.equal(attend(case, case.chunks(parts), **serve), whole)
    assert torch.equal(attend(case, case.chunks(), **serve, most_partial_bytes=1 << 20), whole)
    # The last tokens of each sequence as steps of single tokens have them: in parts, and each with all its parts.
    for full in (1 << 30, 1):
        monkeypatch.setattr(exact_attention, "_FULL", full)
        monkeypatch.setattr(exact_attention, "_EVEN", 1e9)
        singles = attend(case, one_by_one(case)[-12:], fixed=True, **serve)
        seen = ~singles.isnan()
        assert seen.any()
        assert torch.equal(singles[seen], whole[seen])


@pytest.mark.parametrize("shape", [(2048, 2048), (4096, 1000), (12288, 2048), (1000, 6144), (151936, 512)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_of_a_product_has_the_same_bits_among_any_number_of_others(shape, dtype):
    torch.manual_seed(0)
    weight = SkinnyWeight((torch.randn(shape, device=CUDA) / 30).to(dtype), SkinnyScratch(CUDA), exact=True)
    x = torch.randn(1100, shape[1], device=CUDA).to(dtype)
    for apply in (weight.apply, weight.apply_float32):
        whole = apply(x)
        want = x[:64].double() @ weight.weight.double().t()
        assert (whole[:64].double() - want).norm() / want.norm() < 4e-3
        for rows in (1, 3, 8, 17, 64, 65, 300, 513):
            assert torch.equal(apply(x[7 : 7 + rows]), whole[7 : 7 + rows])


@pytest.mark.parametrize("encoding", ["Q4_0", "Q4_1", "Q8_0", "Q5_1", "Q4_K", "Q6_K", (4, 64), (8, 32)], ids=str)
@pytest.mark.parametrize("shape", [(2048, 2048), (4096, 1024), (1024, 6144)], ids=str)
def test_a_row_of_a_product_with_codes_has_the_same_bits_among_any_number_of_others(shape, encoding):
    route = CodesRoute(torch.bfloat16, CUDA, SkinnyScratch(CUDA), exact=True)
    tensor = (shard_of if isinstance(encoding, str) else mlx_shard)(encoding, *shape)
    weight = route.pack([tensor])
    x = torch.randn(600, shape[1], device=CUDA).bfloat16()
    whole = weight.apply_float32(x)
    want = x.double() @ tensor.dequantize(torch.float32).double().to(CUDA).t()
    assert (whole.double() - want).norm() / want.norm() < 4e-3
    for rows in (1, 3, 8, 17, 64, 65, 257):
        assert torch.equal(weight.apply_float32(x[7 : 7 + rows]), whole[7 : 7 + rows])
