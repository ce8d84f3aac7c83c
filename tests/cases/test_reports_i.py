"""Reports of kind i, kernels, replayed: far offsets, empty parts, many rows. On a GPU Triton runs its kernels there."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.spec import LayerSpec, group_layers
from octavo.kernels import reference, rows
from octavo.kernels.cpu import library
from octavo.layers.embedding import Embedding
from octavo.layers.linear.affine_route import AffineRoute
from octavo.layers.linear.dense_route import DenseRoute
from octavo.step_batch import BlockCopy, FreshBlocks, StepBatch, StepRow, StorageKind
from octavo.storage.codecs import CODECS
from octavo.storage.kv_cache import KVCache
from octavo.storage.layer_store import KVRows
from octavo.storage.route import RouteSwitches
from tests.combinations import by_day
from tests.engine.sampler_cases import row, sample
from tests.layers.test_linear_routes import shard_of

CPU = torch.device("cpu")
KERNELS = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where Triton's kernels run or are interpreted
COUNTS = [65_534, 65_535, 65_536, 262_145]
many_rows = pytest.mark.parametrize("count", COUNTS)


@pytest.fixture(params=["compiled", "torch"])
def kernels(request, monkeypatch):
    """Both ways to compute: the compiled kernels, and torch where there are none."""
    if request.param == "torch":
        monkeypatch.setattr(library, "load", lambda: library.Library(None, "for a test"))
    elif library.load().functions is None:
        pytest.skip(library.load().reason)
    return request.param


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- R050: offsets beyond 32 bits -----------------------------------------------------------------------------------

BLOCK = 64
WIDTH = 256
FAR = 2**31 // (BLOCK * WIDTH)  # the first block whose elements a signed 32-bit number cannot count, of one head


class OneLayer:
    """One layer of one K/V head whose pool is as large as asked; memory that nothing touches is never committed."""

    def __init__(self, num_blocks, codec, native):
        spec = LayerSpec("full", 4, 1, WIDTH, WIDTH, WIDTH**-0.5, None, None)
        self.cache = KVCache(
            group_layers([spec]), num_blocks=[num_blocks], block_size=BLOCK, max_seqs=1, max_context=8 * BLOCK,
            codecs=(CODECS[codec], CODECS[codec]), device=CPU, switches=RouteSwitches(native=native),
        )  # fmt: skip

    def step(self, data, start, stop, fresh, copies=()):
        """What tokens `[start, stop)` attend to, after `fresh` blocks (first, ids) were gained."""
        gained = (FreshBlocks(0, *fresh),)
        step = StepRow(0, 1, StorageKind.PAGED, (0,) * (stop - start), start, gained, (0,), True)
        self.cache.plan(StepBatch((step,), tuple(copies)))
        return self.cache.attend(0, *(each[start:stop].contiguous() for each in data)).clone()


@pytest.mark.parametrize("native", [None, False], ids=["fused", "gather"])
@pytest.mark.parametrize("codec", ["f16", "q8_0"])
def test_r050_blocks_beyond_two_to_the_31_elements_are_written_copied_and_read_as_low_ones(kernels, codec, native):
    data = [draw(4 * BLOCK, heads, WIDTH, seed=seed) for seed, heads in enumerate((4, 1, 1))]
    answers = []
    for first in (0, FAR + 1):
        layer = OneLayer(first + 8, codec, native)
        ids = tuple(first + i for i in (5, 0, 3))
        prompt = layer.step(data, 0, 3 * BLOCK - 7, (0, ids))
        token = layer.step(data, 3 * BLOCK - 7, 3 * BLOCK - 6, (3, ()))
        # Another took the last block: it is copied, and only the copy written on.
        copied = layer.step(
            data, 3 * BLOCK - 6, 4 * BLOCK, (2, (first + 6, first + 1)), [BlockCopy(0, first + 3, first + 6, serial=1)]
        )
        answers.append(torch.cat((prompt, token, copied)))
    low, high = answers
    assert torch.equal(low, high)
    q, k, v = (each.double() for each in data)
    expected = reference.attention(q, k, v, q_start=0, scale=WIDTH**-0.5)
    assert (high - expected).abs().max() < (0.002 if codec == "f16" else 0.05)


@pytest.mark.parametrize("codec", ["f16", "q8_0", "q4_0"])
def test_r050_the_fused_decode_reads_blocks_beyond_two_to_the_31_elements(codec):
    pytest.importorskip("triton", reason="triton is not installed")
    from tests.kernels.triton.decode_cases import DecodeCase

    case = DecodeCase(
        [150, 33], hq=4, hkv=1, dim=WIDTH, block_size=BLOCK, k_codec=codec, v_codec=codec, device=str(KERNELS)
    )
    low = case.run(chunk=64)
    assert (low.double() - case.expected()).abs().max() < 5e-4
    used = len(next(iter(case.store[0].planes().values())))
    far = FAR + 1 if codec != "q4_0" else 2 * FAR + 1  # a byte holds two codes
    moved = []
    for old in case.store:
        new = CODECS[codec].allocate(far * BLOCK + used, 1, WIDTH, KERNELS)
        for name, plane in old.planes().items():
            new.planes()[name][far * BLOCK :] = plane
        moved.append(new)
    case.store = moved
    case.table = torch.where(case.table < 2**31 - 1, case.table + far, case.table)
    assert torch.equal(case.run(chunk=64), low)


# -- R051: parts that see nothing -----------------------------------------------------------------------------------


def merged(parts, lse, merges, sinks=None):
    """Results [T, 2, 4] of merging `parts` [slots, 2, 4] with base-2 log-sum-exps `lse` [slots, 2]."""
    pytest.importorskip("triton", reason="triton is not installed")
    from octavo.kernels.triton.decode_merge import decode_merge

    out = torch.full((len(merges), 2, 4), 7.0, device=KERNELS)
    table = torch.tensor(merges, dtype=torch.int32, device=KERNELS).flatten()
    sink_logits = (lse if sinks is None else sinks).to(KERNELS)
    decode_merge[(len(merges), 2, 1)](
        out, parts.flatten().to(KERNELS), lse.flatten().to(KERNELS), table, sink_logits, HQ=2, QUERIES=1, DV=4,
        BLOCK_D=16, BLOCK_S=32, HAS_SINKS=sinks is not None, DEPENDENT=False,
    )  # fmt: skip
    return out.cpu()


@pytest.mark.parametrize("sinks", [None, (0.5, -1.0)], ids=["plain", "sinks"])
def test_r051_an_empty_part_is_nothing_whatever_its_buffer_holds(sinks):
    empty = float("-inf")
    parts, lse = draw(6, 2, 4), draw(6, 2, seed=1)
    lse[[1, 4, 5]] = empty
    parts[[1, 4, 5]] = float("nan")
    sinks = None if sinks is None else torch.tensor(sinks)
    # First row, rows, first slot, slots: one part of three is empty, one of one is not, all of two are.
    out = merged(parts, lse, [(0, 1, 0, 3), (1, 1, 3, 1), (2, 1, 4, 2)], sinks)
    weight = torch.exp2(lse[[0, 2]].double())
    added = 0.0 if sinks is None else sinks.double().exp()
    whole = (parts[[0, 2]].double() * weight[..., None]).sum(0) / (weight.sum(0) + added)[:, None]
    assert (out[0] - whole).abs().max() < 1e-6
    alone = 1.0 if sinks is None else torch.exp2(lse[3]) / (torch.exp2(lse[3]) + sinks.exp())
    assert (out[1] - parts[3] * (alone if sinks is None else alone[:, None])).abs().max() < 1e-6
    assert torch.equal(out[2], torch.zeros(2, 4))


def test_r051_sequences_of_no_tokens_and_windows_that_hide_whole_parts_touch_no_other_row():
    pytest.importorskip("triton", reason="triton is not installed")
    from tests.kernels.triton.decode_cases import DecodeCase

    # With a window of 3 the last query rows see nothing of the first part, and the first ones nothing of the second.
    case = DecodeCase([68, 0, 200, 9], queries=[8, 1, 2, 1], hq=2, hkv=1, window=3, device=str(KERNELS))
    out = case.run(chunk=64)
    assert case.work.num_slots == 2
    assert (out.double() - case.expected()).abs().max() < 5e-4
    assert torch.equal(out[8], torch.zeros_like(out[8]))
    case.decode._partial.fill_(float("nan"))
    assert torch.equal(case.run(chunk=64, decode=case.decode), out)


# -- R053: more rows than 16 bits count -----------------------------------------------------------------------------


@many_rows
def test_r053_norms_rotations_and_gates_reach_every_row(kernels, count):
    x, weight = draw(count, 4), draw(4, seed=1)
    double = x.double()
    expected = double * weight.double() / (double.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert (rows.rms_norm(x, weight, 1e-5) - expected).abs().max() < 1e-5
    gates, values = double.chunk(2, dim=-1)
    assert (rows.gate(x, "silu") - gates * gates.sigmoid() * values).abs().max() < 1e-5
    angle = draw(count, 8, seed=2)
    cos, sin = torch.cat((angle.cos(),) * 2, -1), torch.cat((-angle.sin(), angle.sin()), -1)
    heads = draw(count, 3, 16, seed=3)
    first, second = heads.chunk(2, dim=-1)
    turned = heads * cos[:, None] + torch.cat((second, first), -1) * sin[:, None]
    q, k, v = rows.rotate_heads(heads.clone(), 1, 1, cos, sin)
    assert (torch.cat((q, k), dim=1) - turned[:, :2]).abs().max() < 1e-5
    assert torch.equal(v, heads[:, 2:])


@pytest.mark.parametrize(("codec", "count"), by_day(("turbo4", "f16", "q8_0", "q4_0"), COUNTS))
def test_r053_keys_and_values_of_so_many_tokens_are_all_stored(kernels, codec, count):
    spec = LayerSpec("full", 1, 1, 16, 16, 1.0, None, None)
    store = KVRows.allocate(spec, count, CODECS[codec], CODECS[codec], CPU)
    k, v = draw(count, 1, 16), draw(count, 1, 16, seed=1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(2))
    store.write(order, k, v)
    for held, given in ((store.k, k), (store.v, v)):
        out = torch.empty(1, count, 16)
        held.read(0, count, out)
        back = CODECS[codec].round_trip(given)
        assert torch.equal(out[0, order], back[:, 0])


@many_rows
def test_r053_so_many_tokens_are_looked_up_and_multiplied(kernels, count):
    routes = [DenseRoute(torch.float32, CPU)]
    if kernels == "compiled":
        routes.append(AffineRoute())
    shard = shard_of("Q8_0", 64, 32)
    whole = shard.dequantize()
    ids = torch.arange(count) * 7 % 64
    for route in routes:
        packed = route.pack([shard])
        looked_up = Embedding(packed)(ids)
        assert torch.allclose(looked_up, whole[ids], atol=1e-3)
        product = packed.apply_float32(looked_up[:, :32])
        assert (product - looked_up.double() @ whole.double().T).abs().max() < 0.01


def test_r053_so_many_rows_are_sampled_each_for_itself():
    count = 65_537
    logits = torch.full((count, 8), -50.0)
    logits[torch.arange(count), torch.arange(count) % 8] = 50.0
    greedy, drawn = row(temperature=0.0), row(temperature=1.0)
    settings = [greedy if i % 3 else drawn for i in range(count)]
    assert sample(logits, *settings).token_ids == [i % 8 for i in range(count)]


def test_r053_a_decode_of_more_parts_than_a_launch_may_have_takes_several(monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed")
    from octavo.kernels.triton import paged_decode
    from tests.kernels.triton.decode_cases import DecodeCase

    assert paged_decode._MOST_ITEMS < 2**16
    case = DecodeCase([190, 5, 0, 64], hq=4, hkv=2, device=str(KERNELS))
    at_once = case.run(chunk=64)
    assert len(case.work.items) > 5
    for most in (3, len(case.work.items) - 1):
        monkeypatch.setattr(paged_decode, "_MOST_ITEMS", most)
        assert torch.equal(case.run(chunk=64), at_once)
