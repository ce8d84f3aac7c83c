"""Row kernels and paged prefill on a CUDA device: bfloat16, pairings of codecs, long prompts, exact bits, graphs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.rows import HeadNorms, Rotation
from octavo.kernels.triton.fused_rows import add_rms_norm_, gate
from octavo.kernels.triton.head_rows import HeadShape, rotate_and_store_heads
from octavo.kernels.triton.paged_decode import DecodeSpec, StoredRows
from octavo.kernels.triton.paged_prefill import PagedPrefill
from octavo.kernels.triton.prefill_plan import PrefillRows
from octavo.storage.codecs import CODECS
from tests.kernels.triton.prefill_cases import PrefillCase

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

CUDA = torch.device("cuda")


@pytest.mark.parametrize("codecs", list(product(("bf16", "f16", "q8_0", "q4_0"), repeat=2)), ids="-".join)
def test_every_pairing_of_codecs_equals_the_oracle_and_has_the_same_bits_in_chunks(codecs):
    # Early tiles are precise, late ones rounded.
    settings = {"hq": 6, "hkv": 2, "dim": 128, "k_codec": codecs[0], "v_codec": codecs[1], "device": "cuda"}
    case = PrefillCase([2600, 1300, 9], queries=[700, 400, 9], **settings)
    out = case.prefill(None)
    assert (out.double() - case.expected()).abs().max() < 5e-4
    assert torch.equal(case.prefill(None, parts=4), out)
    merged = case.prefill(None, part=256, poison=True)
    assert (merged.double() - case.expected()).abs().max() < 5e-4
    assert torch.equal(case.prefill(None, parts=4, part=256, poison=True), merged)


@pytest.mark.parametrize("group", [1, 5, 7, 8])
@pytest.mark.parametrize("dim", [64, 80, 96, 256])
def test_every_head_size_and_group_equals_the_oracle_past_the_first_columns(dim, group):
    case = PrefillCase([1500, 700], queries=[400, 700], hq=2 * group, hkv=2, dim=dim, device="cuda")
    out, want = case.prefill(None).double(), case.expected()
    assert (out - want).abs().max() < 5e-4
    # Means of many values are small: what 1 % of them is, only the relative error shows.
    assert (out - want).norm() / want.norm() < 1e-3 < (out * 1.01 - want).norm() / want.norm()


def test_late_bfloat16_tiles_stay_within_their_rounding():
    case = PrefillCase([3000], queries=[700], hq=4, hkv=2, dim=128, k_codec="bf16", v_codec="bf16", device="cuda")
    out, want = case.prefill(None).double(), case.expected()
    assert (out - want).abs().max() < 5e-4
    assert (out - want).norm() / want.norm() < 5e-3 < (out * 1.01 - want).norm() / want.norm()


def test_pools_past_two_to_the_31_elements_are_addressed():
    block_size, hkv, dim, context = 16, 2, 128, 1024
    num_rows = (2**31 // (hkv * dim) + 2 * context) // block_size * block_size
    spec = DecodeSpec(4, hkv, dim, dim, block_size, "f16", "f16", scale=dim**-0.5)
    k, v = (torch.empty(num_rows, hkv, dim, dtype=torch.float16, device=CUDA) for _ in range(2))
    qkv = torch.randn(context, (4 + 2 * hkv) * dim, device=CUDA)
    for x in (k, v):
        x[:context] = float("nan")  # where 32-bit offsets would end up
    ids = num_rows // block_size - 1 - torch.randperm(context // block_size, device=CUDA)
    rows = (ids[:, None] * block_size + torch.arange(block_size, device=CUDA)).flatten()
    table = torch.ones(1, dim, device=CUDA)
    still = Rotation(table, torch.zeros_like(table), torch.zeros(context, dtype=torch.int64, device=CUDA))
    stored = StoredRows(k, None), StoredRows(v, None)
    shape = HeadShape(4, hkv, dim, "f16", "f16")
    q = rotate_and_store_heads(shape, qkv, still, None, rows, *stored, torch.float32)
    kernel = PagedPrefill(spec, CUDA)
    one = np.zeros(1, dtype=np.int64)
    kernel.plan(PrefillRows(one, one + context, one, one))
    out = torch.full_like(q, float("nan"))
    kernel.run(q, *stored, ids.int(), out)
    keys, values = (x.double().repeat_interleave(2, 1) for x in qkv.half().view(context, -1, dim)[:, 4:].split(hkv, 1))
    scores = torch.einsum("thd,shd->hts", q.double(), keys) * spec.scale
    scores += torch.full_like(scores, float("-inf")).triu(1)
    want = torch.einsum("hts,shd->thd", scores.softmax(-1), values)
    assert (out - want).abs().max() < 5e-4


@pytest.mark.parametrize("codec", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("dim", [64, 128])
def test_a_token_has_the_same_bits_among_any_number_of_others(dim, codec):
    hq, hkv, count = 16, 8, 700
    qkv = torch.randn(count, (hq + 2 * hkv) * dim, device=CUDA).bfloat16()
    angle = torch.arange(count, device=CUDA)[:, None] * torch.rand(1, dim, device=CUDA)
    norms = HeadNorms(*torch.rand(2, dim, device=CUDA), 1e-6)

    def run(tokens):
        stores = [CODECS[codec].allocate(count, hkv, dim, CUDA) for _ in range(2)]
        rotation = Rotation(angle.cos(), angle.sin(), torch.arange(count, device=CUDA)[tokens])
        planes = [StoredRows.of(store.planes()) for store in stores]
        rows = torch.arange(count, device=CUDA)[tokens]
        shape = HeadShape(hq, hkv, dim, codec, codec)
        q = rotate_and_store_heads(shape, qkv[tokens], rotation, norms, rows, *planes, torch.float32)
        return q, [plane[tokens] for store in stores for plane in store.planes().values()]

    q, planes = run(slice(None))
    for size in (1, 5, 40, 300):
        part = slice(17, 17 + size)
        own_q, own_planes = run(part)
        assert torch.equal(own_q, q[part])
        assert all(torch.equal(own, all_of[part]) for own, all_of in zip(own_planes, planes, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_and_gates_round_once_and_a_row_has_the_same_bits_alone(dtype):
    for width in (64, 896, 2048, 5376):
        x, y = torch.randn(300, width, device=CUDA), torch.randn(300, width, device=CUDA).to(dtype)
        weight = torch.rand(width, device=CUDA)
        total = x.double() + y.double()
        want = total * (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
        alone = add_rms_norm_(x[7:8].clone(), y[7:8], weight, 1e-6, dtype)
        out = add_rms_norm_(x, y, weight, 1e-6, dtype)
        assert ((out.double() - want).abs() <= want.abs() * torch.finfo(dtype).eps * 0.51 + 1e-6).all()
        assert torch.equal(out[7:8], alone)
        wide = torch.randn(300, 2 * width, device=CUDA).to(dtype)
        gates, values = wide.double().chunk(2, -1)
        want = torch.nn.functional.silu(gates) * values
        out = gate(wide, False, dtype)
        assert ((out.double() - want).abs() <= want.abs() * torch.finfo(dtype).eps * 0.51 + 1e-6).all()
        assert torch.equal(gate(wide[7:8], False, dtype), out[7:8])


def test_a_graph_of_all_of_them_replays_what_eager_gives():
    hq, hkv, dim, count, width = 8, 4, 64, 60, 512
    spec = DecodeSpec(hq, hkv, dim, dim, 16, "f16", "f16", scale=dim**-0.5)
    x, y = torch.randn(count, width, device=CUDA), torch.randn(count, width, device=CUDA).bfloat16()
    project = torch.randn(width, (hq + 2 * hkv) * dim, device=CUDA).bfloat16() / 20
    weight = torch.rand(width, device=CUDA)
    stored = [StoredRows(torch.zeros(64, hkv, dim, dtype=torch.float16, device=CUDA), None) for _ in range(2)]
    angle = torch.rand(count, dim, device=CUDA)
    rotation = Rotation(angle.cos(), angle.sin(), torch.arange(count, device=CUDA))
    kernel = PagedPrefill(spec, CUDA)
    one = np.zeros(1, dtype=np.int64)
    kernel.plan(PrefillRows(one, one + count, one, one))
    table, rows = torch.tensor([3, 1, 0, 2], device=CUDA).int(), torch.arange(count, device=CUDA)
    rows = table.long()[rows // 16] * 16 + rows % 16
    shape = HeadShape(hq, hkv, dim, "f16", "f16")

    def layer():
        normed = add_rms_norm_(x, y, weight, 1e-6, torch.bfloat16)
        q = rotate_and_store_heads(shape, normed @ project, rotation, None, rows, *stored, torch.float32)
        out = torch.empty(count, hq, dim, dtype=torch.bfloat16, device=CUDA)
        kernel.run(q, *stored, table, out)
        return gate(out.flatten(1), True, torch.bfloat16)

    start = x.clone()
    want = layer().clone()
    assert want.isfinite().all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer()
    for _ in range(3):
        x.copy_(start)
        for each in stored:
            each.data.zero_()
        graph.replay()
        assert torch.equal(out, want)
