"""The seam: what `attend` returns does not depend on where keys and values lie, nor on the company a row is in."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.spec import LayerSpec
from octavo.kernels import reference
from octavo.kernels.cpu import library
from octavo.step_batch import StorageKind
from octavo.storage.route import Route
from tests.paged_routes import paged_routes
from tests.schedules import HandScheduler, random_shares

LENGTHS = (300, 17, 1, 530)
DIM = 32


def spec(window=None, softcap=None):
    kind = "full" if window is None else "sliding"
    return LayerSpec(kind, 6, 2, DIM, DIM, 0.25, window, softcap)


LAYOUT = [spec(), spec(window=40), spec(), spec(window=256)]


def draw(seed):
    """q, k, v of every slot and layer: [S, H, D]."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [[torch.randn(length, heads, DIM, generator=generator) for heads in (6, 2, 2)] for _ in LAYOUT]
        for length in LENGTHS
    ]


def run(storage, steps, data, *, block_size=16, codecs=("f32", "f32"), layout=LAYOUT):
    """Attention outputs [S, Hq, D] per slot and layer after following `steps`."""
    scheduler = HandScheduler(
        layout, storage, max_seqs=len(LENGTHS), max_context=max(LENGTHS), block_size=block_size, codecs=codecs
    )
    outputs = [[[] for _ in layout] for _ in LENGTHS]
    for shares in steps:
        starts = [scheduler.written[slot] for slot, _ in shares]
        scheduler.cache.plan(scheduler.batch([(slot, [0] * count) for slot, count in shares]))
        for layer in range(len(layout)):
            packed = [
                torch.cat([data[slot][layer][i][at : at + n] for (slot, n), at in zip(shares, starts, strict=True)])
                for i in range(3)
            ]
            out = scheduler.cache.attend(layer, *packed)
            for (slot, _), piece in zip(shares, out.split([n for _, n in shares]), strict=True):
                outputs[slot][layer].append(piece.clone())
    return [[torch.cat(pieces) for pieces in layers] for layers in outputs], scheduler.cache


WHOLE = [[(slot, length)] for slot, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("storage", list(StorageKind), ids=lambda s: s.value)
def test_whole_prefill_equals_the_float64_definition(storage):
    data = draw(0)
    outputs, _ = run(storage, WHOLE, data)
    for slot in range(len(LENGTHS)):
        for layer, layer_spec in enumerate(LAYOUT):
            q, k, v = data[slot][layer]
            expected = reference.attention(q.double(), k, v, q_start=0, scale=0.25, window=layer_spec.window)
            error = (outputs[slot][layer] - expected).abs().max() / expected.abs().max()
            assert error < 2e-6


CODEC_PAIRS = [("f32", "f32"), ("f16", "f16"), ("bf16", "f16"), ("q8_0", "q8_0"), ("turbo4", "q4_0")]


@pytest.mark.parametrize("codecs", CODEC_PAIRS, ids=lambda c: "-".join(c))
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_mixed_schedule_and_storage_gives_the_bits_of_a_whole_prefill_alone(codecs, block_size, seed):
    data = draw(seed)
    expected, _ = run(StorageKind.DENSE, WHOLE, data, codecs=codecs)
    for storage in StorageKind:
        steps = random_shares(LENGTHS, seed * 10 + block_size)
        got, _ = run(storage, steps, data, block_size=block_size, codecs=codecs)
        for slot in range(len(LENGTHS)):
            for layer in range(len(LAYOUT)):
                assert torch.equal(got[slot][layer], expected[slot][layer]), f"{storage} slot {slot} layer {layer}"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 160))
def test_a_long_sweep_of_schedules_gives_the_bits_of_a_whole_prefill_alone(seed):
    codecs, block_size = CODEC_PAIRS[seed % 5], (16, 32, 64)[seed // 5 % 3]
    data = draw(seed)
    expected, _ = run(StorageKind.DENSE, WHOLE, data, codecs=codecs)
    for storage in StorageKind:
        got, _ = run(storage, random_shares(LENGTHS, seed, longest=300), data, block_size=block_size, codecs=codecs)
        for slot in range(len(LENGTHS)):
            for layer in range(len(LAYOUT)):
                assert torch.equal(got[slot][layer], expected[slot][layer]), f"{storage} slot {slot} layer {layer}"


def test_a_window_reaches_back_exactly_its_length():
    window, length = 40, 130
    q = torch.zeros(length, 6, DIM)
    k = torch.zeros(length, 2, DIM)
    v = torch.arange(length, dtype=torch.float32).view(-1, 1, 1).expand(-1, 2, DIM).contiguous()
    for storage in StorageKind:
        scheduler = HandScheduler([spec(window=window)], storage, max_seqs=1, max_context=length)
        got = []
        for at in range(length):
            scheduler.cache.plan(scheduler.batch([(0, [0])]))
            got.append(scheduler.cache.attend(0, q[at : at + 1], k[at : at + 1], v[at : at + 1])[0, 0, 0])
        for at in (0, window - 2, window - 1, window, 2 * window, length - 1):
            seen = torch.arange(max(0, at - window + 1), at + 1, dtype=torch.float32)
            assert got[at].item() == pytest.approx(seen.mean().item(), rel=1e-5), f"position {at} in {storage}"


def test_routes_are_counted_with_their_reason():
    _, cache = run(StorageKind.DENSE, WHOLE, draw(0))
    assert cache.routes.by_route() == {"dense": len(LENGTHS), "ring": 2 * len(LENGTHS)}
    _, cache = run(StorageKind.PAGED, WHOLE, draw(0))
    assert cache.routes.by_route() == paged_routes(9, 3)
    if library.load().functions is None:
        assert (Route.GATHER, library.load().reason) in cache.routes.counts


def test_the_switch_that_forces_gather_is_named_as_the_reason(monkeypatch):
    monkeypatch.setenv("OCTAVO_PAGED_ATTENTION_NATIVE", "0")
    _, cache = run(StorageKind.PAGED, WHOLE, draw(0))
    assert set(cache.routes.counts) == {(Route.GATHER, "OCTAVO_PAGED_ATTENTION_NATIVE=0")}


def test_a_slot_taken_over_by_another_sequence_shows_nothing_of_the_first():
    from dataclasses import replace

    data = draw(5)
    expected, _ = run(StorageKind.DENSE, WHOLE, data)
    for storage in StorageKind:
        scheduler = HandScheduler(LAYOUT, storage, max_seqs=1, max_context=max(LENGTHS))
        for slot, generation in ((3, 1), (1, 2)):
            scheduler.written[0] = scheduler._held[0] = 0
            batch = scheduler.batch([(0, [0] * LENGTHS[slot])])
            batch = replace(batch, rows=(batch.rows[0]._replace(generation=generation),))
            scheduler.cache.plan(batch)
            for layer in range(len(LAYOUT)):
                assert torch.equal(scheduler.cache.attend(layer, *data[slot][layer]), expected[slot][layer])
