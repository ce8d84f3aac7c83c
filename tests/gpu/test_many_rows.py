"""Report R053 on a GPU: kernels of more rows than a grid's second dimension may have (65,535) leave none out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.engine.sampler import Sampler, SamplerRow
from octavo.engine.sampling_device import draw_settings
from octavo.engine.sampling_random import TokenNoise
from octavo.engine.sampling_workspace import Workspace
from octavo.kernels.draws import draw_tokens
from octavo.kernels.greedy import greedy_tokens_by_parts
from octavo.kernels.rows import Rotation
from octavo.kernels.triton.exact_attention import ExactAttention
from octavo.kernels.triton.fused_rows import add_rms_norm_, gate, look_up
from octavo.kernels.triton.head_rows import HeadShape, rotate_and_store_heads
from octavo.kernels.triton.paged_decode import DecodeSpec, StoredRows
from octavo.kernels.triton.paged_prefill import PagedPrefill
from octavo.kernels.triton.prefill_plan import PrefillRows
from octavo.kernels.triton.skinny_gemm import SkinnyScratch, multiply
from octavo.kernels.triton.skinny_table import exact_tile
from octavo.sampling_params import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

CUDA = torch.device("cuda")
ROWS, BLOCK, DIM = 70_001, 16, 64


@pytest.mark.parametrize("kernel", [PagedPrefill, ExactAttention])
def test_r053_chunks_of_any_number_of_sequences_attend(kernel):
    k, v = (torch.randn(ROWS * BLOCK, 1, DIM, device=CUDA).half() for _ in range(2))
    q = torch.randn(ROWS, 2, DIM, device=CUDA)
    order = torch.randperm(ROWS, device=CUDA)
    each = np.arange(ROWS)
    attention = kernel(DecodeSpec(2, 1, DIM, DIM, BLOCK, "f16", "f16", scale=DIM**-0.5), CUDA)
    attention.plan(PrefillRows(each, np.ones_like(each), np.full(ROWS, BLOCK - 1), each))
    out = torch.full_like(q, float("nan"))
    attention.run(q, StoredRows(k, None), StoredRows(v, None), order.int(), out)
    keys, values = (x.view(ROWS, BLOCK, DIM)[order].float() for x in (k, v))
    weights = torch.softmax(q @ keys.transpose(1, 2) * DIM**-0.5, dim=-1)
    assert (out - weights @ values).abs().max() < 5e-4


def test_r053_any_number_of_rows_is_normalised_gated_and_looked_up():
    x, y = torch.randn(2, ROWS, DIM, device=CUDA)
    weight = torch.rand(DIM, device=CUDA)
    summed = x + y
    expected = summed * torch.rsqrt(summed.square().mean(1, keepdim=True) + 1e-6) * weight
    assert (add_rms_norm_(x, y, weight, 1e-6, torch.float32) - expected).abs().max() < 1e-4
    assert torch.equal(x, summed)
    gates, rest = x.split(DIM // 2, 1)
    assert (gate(x, False, torch.float32) - torch.nn.functional.silu(gates) * rest).abs().max() < 1e-4
    ids = torch.randint(0, 100, (ROWS,), device=CUDA)
    assert torch.equal(look_up(x[:100].bfloat16(), ids), x[:100].bfloat16().float()[ids])


def test_r053_any_number_of_rows_is_multiplied():
    x, weight = torch.randn(ROWS, DIM, device=CUDA).half(), torch.randn(96, DIM, device=CUDA).half()
    out, scratch = torch.full((ROWS, 96), float("nan"), device=CUDA), SkinnyScratch(CUDA)
    tile = exact_tile(96, DIM, ROWS, scratch.shared_bytes)
    scratch.reserve(tile, ROWS, 96)
    multiply(x, weight, out, tile, scratch)
    expected = x.float() @ weight.float().t()
    assert (out - expected).norm() < 1e-3 * expected.norm()


def test_r053_heads_of_any_number_of_tokens_are_turned_and_stored():
    qkv = torch.randn(ROWS, 4 * DIM, device=CUDA)
    angle = torch.rand(9, DIM, device=CUDA)
    positions, places = torch.arange(ROWS, device=CUDA) % 9, torch.randperm(ROWS, device=CUDA)

    def store(tokens):
        planes = [StoredRows(torch.zeros(ROWS, 1, DIM, dtype=torch.float16, device=CUDA), None) for _ in range(2)]
        rotation = Rotation(angle.cos(), angle.sin(), positions[tokens])
        shape = HeadShape(2, 1, DIM, "f16", "f16")
        q = rotate_and_store_heads(shape, qkv[tokens], rotation, None, places[tokens], *planes, torch.float32)
        return q, planes[0].data[places[tokens]], planes[1].data[places[tokens]]

    whole = store(slice(None))
    assert torch.equal(whole[2], qkv[:, 3 * DIM :, None].transpose(1, 2).half())
    for tokens in (slice(0, 40_000), slice(40_000, None)):
        for found, expected in zip(whole, store(tokens), strict=True):
            assert torch.equal(found[tokens], expected)


def test_r053_tokens_of_any_number_of_rows_are_drawn():
    vocab_size, kinds = 60, ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.5, "top_k": 7, "top_p": 0.9})
    rows = [
        SamplerRow(
            SamplingParams(**kinds[i % len(kinds)]), seed=i, choice=0, position=i % 50, prompt_token_ids=[],
            output_token_ids=[],
        )
        for i in range(ROWS)
    ]  # fmt: skip
    logits = torch.randn(ROWS, vocab_size, generator=torch.Generator().manual_seed(0)) * 3
    hashes = TokenNoise(vocab_size, Workspace(CUDA)).hashes
    drawn = draw_tokens(logits.to(CUDA), hashes, draw_settings(rows, vocab_size, CUDA))
    checked = [*range(100), *range(65_500, 65_600), *range(ROWS - 100, ROWS)]
    expected = Sampler(vocab_size, "cpu").sample(logits[checked], [rows[i] for i in checked]).token_ids
    assert drawn[checked].tolist() == expected
    best = torch.empty(ROWS, dtype=torch.int64, device=CUDA)
    assert torch.equal(greedy_tokens_by_parts(logits.to(CUDA), best).cpu(), logits.argmax(1))
