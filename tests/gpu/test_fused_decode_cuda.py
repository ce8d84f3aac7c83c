"""The fused paged decode on a CUDA device: a matrix of shapes, graphs, and steps that wait for nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton.decode_plan import DecodeRows
from octavo.kernels.triton.paged_decode import DecodeSpec, PagedDecode, StoredRows
from tests.kernels.triton.decode_cases import DecodeCase

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

HKV = 2
RELATIVE = {"f16": 1e-3, "bf16": 5e-3}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def rows_of(columns, block_size, queries=1):
    columns = np.asarray(columns)
    blocks = -(-columns // block_size)
    return DecodeRows(
        first_query=np.arange(len(columns)) * queries,
        num_queries=np.full(len(columns), queries),
        first_column=np.zeros(len(columns), dtype=np.int64),
        columns=columns,
        table_begin=np.cumsum(blocks) - blocks,
    )


def storage(columns, block_size, dim, codec):
    """Random K and V of all sequences in shuffled blocks, and their table."""
    blocks = sum(-(-n // block_size) for n in columns)
    shape = (blocks * block_size, HKV, dim)
    k, v = (StoredRows(torch.randn(shape, device="cuda", dtype=DTYPES[codec]), None) for _ in range(2))
    return k, v, torch.randperm(blocks, device="cuda").int()


def expected(q, k, v, table, rows, block_size, scale):
    """[R, Hq, D] float64, one query row per sequence."""
    out = []
    for r, (n, begin) in enumerate(zip(rows.columns.tolist(), rows.table_begin.tolist(), strict=True)):
        ids = table[begin : begin + -(-n // block_size)].long()
        keys, values = (
            x.data.view(-1, block_size, HKV, x.data.shape[-1])[ids].flatten(0, 1)[:n].double() for x in (k, v)
        )
        query = q[r].double().view(HKV, -1, q.shape[-1])
        weights = torch.softmax(torch.einsum("hgd,shd->hgs", query, keys) * scale, dim=-1)
        out.append(torch.einsum("hgs,shd->hgd", weights, values).flatten(0, 1))
    return torch.stack(out)


def spec_of(dim, group, block_size, codec, **settings):
    return DecodeSpec(HKV * group, HKV, dim, dim, block_size, codec, codec, scale=1 / math.sqrt(dim), **settings)


@pytest.mark.parametrize("codec", DTYPES)
@pytest.mark.parametrize("group", [1, 4, 7, 8])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_every_block_size_context_and_batch_equals_the_oracle(dim, group, codec):
    torch.manual_seed(0)
    for block_size in (16, 32, 64):
        decode = PagedDecode(spec_of(dim, group, block_size, codec), torch.device("cuda"))
        for context, batch in product((512, 4096, 16384, 32768), (1, 4, 8)):
            columns = [context - 3 * i for i in range(batch)]
            k, v, table = storage(columns, block_size, dim, codec)
            rows = rows_of(columns, block_size)
            q = torch.randn(batch, HKV * group, dim, device="cuda", dtype=DTYPES[codec])
            out = torch.full(q.shape, float("nan"), device="cuda")
            decode.plan(rows)
            decode.run(q, k, v, table, out)
            want = expected(q, k, v, table, rows, block_size, decode.spec.scale)
            got = out.double()
            difference = (got - want).abs().max().item()
            assert difference < 5e-4, (block_size, context, batch, difference)
            # Means of many values are small: what 1 % of them is, only the relative error shows.
            assert (got - want).norm() / want.norm() < RELATIVE[codec] < (got * 1.01 - want).norm() / want.norm()


@pytest.mark.parametrize("codecs", list(product(("bf16", "f16", "q8_0", "q4_0"), repeat=2)), ids="-".join)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_every_pairing_of_codecs_equals_the_oracle_on_a_gpu(codecs, dim):
    case = DecodeCase([700, 1, 0, 33], hq=7, hkv=1, dim=dim, k_codec=codecs[0], v_codec=codecs[1], device="cuda")
    assert (case.run().double() - case.expected()).abs().max() < 5e-4
    case = DecodeCase([900, 650], hq=4, hkv=2, dim=dim, k_codec=codecs[0], v_codec=codecs[1], device="cuda")
    assert (case.run().double() - case.expected()).abs().max() < 5e-4


def test_float32_queries_keep_their_precision_over_bfloat16_keys_of_any_number():
    case = DecodeCase([2100] * 40, hq=8, hkv=2, dim=128, k_codec="bf16", v_codec="f16", device="cuda")
    out, want = case.run(), case.expected()
    assert not case.decode.geometry.precise
    assert (out.double() - want).abs().max() < 2e-4
    case.q = case.q.bfloat16()  # what rounding them would cost
    assert (case.run().double() - want).abs().max() > 3e-4


def test_pools_past_two_to_the_31_elements_are_addressed():
    block_size, dim, context = 16, 128, 4096
    num_rows = (2**31 // (HKV * dim) + 2 * context) // block_size * block_size
    k, v = (StoredRows(torch.empty(num_rows, HKV, dim, dtype=torch.float16, device="cuda"), None) for _ in range(2))
    for x in (k, v):
        x.data[-context:] = torch.randn(context, HKV, dim, device="cuda")
        x.data[:context] = float("nan")  # where 32-bit offsets would end up
    last = num_rows // block_size
    table = (last - 1 - torch.randperm(context // block_size, device="cuda")).int()
    rows = rows_of([context], block_size)
    q = torch.randn(1, HKV * 4, dim, device="cuda")
    decode = PagedDecode(spec_of(dim, 4, block_size, "f16"), torch.device("cuda"))
    out = torch.empty_like(q)
    decode.plan(rows)
    decode.run(q, k, v, table, out)
    assert (out - expected(q, k, v, table, rows, block_size, decode.spec.scale)).abs().max() < 5e-4


def test_a_graph_replays_what_eager_gives_while_the_batch_evolves():
    torch.manual_seed(1)
    block_size, dim, longest = 16, 128, [3000, 900, 5000, 40]
    k, v, table = storage(longest, block_size, dim, "f16")
    begin = rows_of(longest, block_size).table_begin
    q = torch.randn(4, HKV * 4, dim, device="cuda")
    decode, eager = (PagedDecode(spec_of(dim, 4, block_size, "f16"), torch.device("cuda")) for _ in range(2))
    out, want = torch.empty_like(q), torch.empty_like(q)
    first = replace(rows_of(longest, block_size), columns=np.array(longest) - 39, table_begin=begin)
    decode.plan(first, capacity=512, precise=True)
    decode.run(q, k, v, table, out)
    torch.cuda.synchronize()
    graph, geometry = torch.cuda.CUDAGraph(), decode.geometry
    with torch.cuda.graph(graph):
        decode.run(q, k, v, table, out)
    for step in range(38, -1, -1):
        rows = replace(first, columns=np.array(longest) - step)
        if step == 20:  # one sequence leaves: its row is padding now
            first = replace(first, num_queries=np.array([1, 0, 1, 1]))
            rows = replace(first, columns=rows.columns)
        decode.plan(rows, capacity=512, precise=True)
        assert decode.geometry == geometry
        out.fill_(7)
        want.fill_(7)
        graph.replay()
        eager.plan(rows, capacity=512, precise=True)
        eager.run(q, k, v, table, want)
        assert torch.equal(out, want)
        reference = expected(q, k, v, table, rows, block_size, decode.spec.scale)
        live = torch.from_numpy(rows.num_queries > 0).cuda()
        assert (out[live].double() - reference[live]).abs().max() < 5e-4
        assert (out[~live] == 7).all()
    assert decode.plans_reused > 20


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_two_hundred_steps_wait_for_nothing_and_allocate_nothing():
    block_size, dim, longest = 16, 128, [3000, 900, 5000, 340]
    k, v, table = storage(longest, block_size, dim, "f16")
    q = torch.randn(4, HKV * 4, dim, device="cuda", dtype=torch.float16)
    out = torch.empty_like(q)
    decode = PagedDecode(spec_of(dim, 4, block_size, "f16"), torch.device("cuda"))
    last = rows_of(longest, block_size)
    decode.plan(last, capacity=512)
    decode.run(q, k, v, table, out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    try:
        torch.cuda.set_sync_debug_mode("error")
        for step in range(199, -1, -1):
            decode.plan(replace(last, columns=last.columns - step), capacity=512)
            decode.run(q, k, v, table, out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    want = expected(q, k, v, table, last, block_size, decode.spec.scale)
    assert (out.double() - want).abs().max() < 1e-3
