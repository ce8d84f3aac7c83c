"""Exact attention behind the seam, under Triton's interpreter: a token's result is its own, however it got there."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.cache.spec import LayerSpec
from octavo.step_batch import StorageKind
from octavo.storage import kv_cache
from octavo.storage.fused_attention import FusedAttention
from octavo.storage.route import Route
from tests.schedules import HandScheduler

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted only where there is no GPU")

DIM = 32
LENGTHS = (40, 19)
LAYOUT = [LayerSpec("full", 4, 2, DIM, DIM, 0.25, None), LayerSpec("sliding", 4, 2, DIM, DIM, 0.25, 16)]
ROWS = {
    (slot, layer, heads): torch.randn(length, heads, DIM, generator=torch.Generator().manual_seed(slot * 9 + layer))
    for slot, length in enumerate(LENGTHS)
    for layer in range(2)
    for heads in (4, 2)
}


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    def attention(spec, store, block_size, device, switches, staging):
        return FusedAttention(spec, store, block_size, device, staging, exact=True)

    monkeypatch.setattr(kv_cache, "_group_attention", attention)


def run(steps):
    """outputs[slot][layer] [T, Hq, D] of steps of (slot, tokens), and the cache."""
    scheduler = HandScheduler(LAYOUT, StorageKind.PAGED, max_seqs=2, max_context=64, codecs=("f16", "f16"))
    outputs = [[torch.full((length, 4, DIM), float("nan")) for _ in LAYOUT] for length in LENGTHS]
    done = [0, 0]
    for shares in steps:
        scheduler.cache.plan(scheduler.batch([(slot, [0] * count) for slot, count in shares]))
        spans = [(slot, slice(done[slot], done[slot] + count)) for slot, count in shares]
        for layer in range(len(LAYOUT)):
            q, k = (torch.cat([ROWS[slot, layer, heads][span] for slot, span in spans]) for heads in (4, 2))
            got = scheduler.cache.attend(layer, q, k, k.flip(-1)).split([count for _, count in shares])
            for (slot, span), part in zip(spans, got, strict=True):
                outputs[slot][layer][span] = part
        for slot, count in shares:
            done[slot] += count
    return outputs, scheduler.cache


def test_tokens_alone_batched_chunked_and_one_by_one_have_the_same_bits():
    whole, cache = run([[(0, 40)], [(1, 19)]])
    assert set(cache.routes.by_route()) == {Route.VARLEN_PREFILL.value}
    steps = [[(0, 7), (1, 1)], [(1, 12), (0, 20)], *([(1, 1), (0, 1)] for _ in range(6)), [(0, 7)]]
    cut, _ = run(steps)
    for got, want in zip(cut, whole, strict=True):
        for layer in range(len(LAYOUT)):
            assert torch.equal(got[layer], want[layer])


def test_padded_steps_of_single_tokens_have_the_same_bits_and_keep_their_launches():
    whole, _ = run([[(0, 40)], [(1, 19)]])
    scheduler = HandScheduler(LAYOUT, StorageKind.PAGED, max_seqs=2, max_context=64, codecs=("f16", "f16"))
    cache, fixtures = scheduler.cache, []
    for position in range(3):
        batch = scheduler.batch([(0, [0]), (1, [0])])
        assert cache.padding_refusal(batch) is None
        fixtures.append(cache.plan_padded(batch, 4, ()).fixture)
        for layer in range(len(LAYOUT)):
            q, k = (torch.stack([ROWS[slot, layer, heads][position] for slot in (0, 1)]) for heads in (4, 2))
            padding = torch.zeros(2, 2, DIM)
            k = torch.cat((k, padding))
            out = cache.attend(layer, torch.cat((q, torch.zeros(2, 4, DIM))), k, k.flip(-1))
            for slot in (0, 1):
                assert torch.equal(out[slot], whole[slot][layer][position])
    assert fixtures[1] == fixtures[2]
