"""Learned sink logits: they join each softmax, add no value, and do so alike from every storage."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.spec import LayerSpec
from octavo.errors import EngineFault
from octavo.kernels import reference
from octavo.kernels.cpu import library
from octavo.step_batch import StorageKind
from octavo.storage.compiled_attention import CompiledAttention
from tests.schedules import HandScheduler, random_shares

LENGTHS = (300, 1, 45)
NUM_Q, NUM_KV, DIM = 6, 2, 32
WINDOWS = (None, 40, None)
LAYOUT = [
    LayerSpec("full" if window is None else "sliding", NUM_Q, NUM_KV, DIM, DIM, 0.25, window, None, True)
    for window in WINDOWS
]
WHOLE = [[(slot, length)] for slot, length in enumerate(LENGTHS)]
# Per layer: ordinary ones, ones that take nearly all the weight, and ones that take next to none.
SINKS = [
    torch.linspace(-2, 3, NUM_Q),
    torch.tensor([20.0, -5.0, 0.0, 9.0, 1.0, -60.0]),
    torch.tensor([float("-inf"), -2e30, 0.5, -1e4, 4.0, 300.0]),
]
KERNELS = pytest.mark.parametrize(
    "eager", [pytest.param(False, id="compiled", marks=pytest.mark.skipif(
        library.load().functions is None, reason="no compiled kernels here")), pytest.param(True, id="eager")]
)  # fmt: skip


@pytest.fixture
def choose(monkeypatch):
    """choose(eager, gather) decides how the next caches attend."""

    def decide(eager, gather=False):
        if eager:
            monkeypatch.setattr(CompiledAttention, "refusal", staticmethod(lambda *_: "asked for by a test"))
        monkeypatch.setenv("OCTAVO_PAGED_ATTENTION_NATIVE", "0" if gather else "")

    return decide


def draw(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        [[torch.randn(length, heads, DIM, generator=generator) for heads in (NUM_Q, NUM_KV, NUM_KV)] for _ in LAYOUT]
        for length in LENGTHS
    ]


def run(storage, steps, data, sinks=SINKS):
    """Attention outputs [S, Hq, D] per slot and layer."""
    scheduler = HandScheduler(LAYOUT, storage, max_seqs=len(LENGTHS), max_context=max(LENGTHS))
    for layer, logits in enumerate(sinks):
        scheduler.cache.set_sinks(layer, logits)
    outputs = [[[] for _ in LAYOUT] for _ in LENGTHS]
    for shares in steps:
        starts = [scheduler.written[slot] for slot, _ in shares]
        scheduler.cache.plan(scheduler.batch([(slot, [0] * count) for slot, count in shares]))
        for layer in range(len(LAYOUT)):
            packed = [
                torch.cat([data[slot][layer][i][at : at + n] for (slot, n), at in zip(shares, starts, strict=True)])
                for i in range(3)
            ]
            out = scheduler.cache.attend(layer, *packed)
            for (slot, _), piece in zip(shares, out.split([n for _, n in shares]), strict=True):
                outputs[slot][layer].append(piece.clone())
    return [[torch.cat(pieces) for pieces in layers] for layers in outputs], scheduler.cache


@KERNELS
@pytest.mark.parametrize("storage", list(StorageKind), ids=lambda s: s.value)
def test_equals_the_float64_definition(storage, eager, choose):
    choose(eager)
    data = draw()
    outputs, _ = run(storage, WHOLE, data)
    for slot in range(len(LENGTHS)):
        for layer, window in enumerate(WINDOWS):
            q, k, v = data[slot][layer]
            expected = reference.attention(
                q.double(), k, v, q_start=0, scale=0.25, window=window, sink_logits=SINKS[layer]
            )
            bound = 2e-6 * expected.abs().amax()
            assert (outputs[slot][layer] - expected).abs().max() < bound
            assert (outputs[slot][layer] * 1.01 - expected).abs().max() > bound


@KERNELS
@pytest.mark.parametrize("seed", [1, 2])
def test_every_storage_route_and_schedule_gives_the_bits_of_a_whole_prefill_alone(seed, eager, choose):
    choose(eager)
    data = draw(seed)
    expected, _ = run(StorageKind.DENSE, WHOLE, data)
    for storage in StorageKind:
        for gather in (False, True):
            choose(eager, gather)
            got, cache = run(storage, random_shares(LENGTHS, seed), data)
            if storage is StorageKind.PAGED and (gather or eager):
                assert set(cache.routes.by_route()) == {"gather"}
            for slot in range(len(LENGTHS)):
                for layer in range(len(LAYOUT)):
                    assert torch.equal(got[slot][layer], expected[slot][layer]), f"{storage} {slot} {layer} {gather}"


@KERNELS
def test_a_sink_of_nearly_all_the_weight_leaves_nearly_no_value_and_an_absent_one_all(eager, choose):
    choose(eager)
    data = draw()
    heavy, _ = run(StorageKind.PAGED, WHOLE, data, [torch.full((NUM_Q,), 200.0)] * len(LAYOUT))
    assert heavy[0][0].abs().max() < 1e-30
    without, _ = run(StorageKind.PAGED, WHOLE, data, [torch.full((NUM_Q,), float("-inf"))] * len(LAYOUT))
    expected = reference.attention(data[0][0][0].double(), *data[0][0][1:], q_start=0, scale=0.25)
    assert (without[0][0] - expected).abs().max() < 2e-6 * expected.abs().max()


def test_a_step_is_refused_while_a_layer_lacks_its_sinks():
    scheduler = HandScheduler(LAYOUT, StorageKind.PAGED, max_seqs=1, max_context=32)
    scheduler.cache.set_sinks(0, SINKS[0])
    scheduler.cache.set_sinks(2, SINKS[2])
    batch = scheduler.batch([(0, [0])])
    with pytest.raises(EngineFault, match="layer 1 has no sink logits"):
        scheduler.cache.plan(batch)
    scheduler.cache.set_sinks(1, SINKS[1])
    scheduler.cache.plan(batch)


def test_sinks_of_another_shape_or_for_a_layer_without_are_refused():
    plain = LayerSpec("full", NUM_Q, NUM_KV, DIM, DIM, 0.25)
    cache = HandScheduler([*LAYOUT, plain], StorageKind.PAGED, max_seqs=1, max_context=32).cache
    for layer, logits in ((0, torch.zeros(NUM_Q + 1)), (0, torch.zeros(NUM_Q, 1)), (3, SINKS[0]), (9, SINKS[0])):
        with pytest.raises(EngineFault, match=f"layer {layer} is given sink logits"):
            cache.set_sinks(layer, logits)


def test_later_changes_of_the_given_tensor_change_nothing():
    data, given = draw(), [logits.clone() for logits in SINKS]
    scheduler = HandScheduler(LAYOUT, StorageKind.PAGED, max_seqs=1, max_context=max(LENGTHS))
    for layer, logits in enumerate(given):
        scheduler.cache.set_sinks(layer, logits)
        logits.fill_(100.0)
    scheduler.cache.plan(scheduler.batch([(0, [0] * LENGTHS[2])]))
    expected, _ = run(StorageKind.PAGED, WHOLE, data)
    assert torch.equal(scheduler.cache.attend(0, *data[2][0]), expected[2][0])
