"""Rings taken out of one sequence and given to another: it goes on with the bits of the first."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.refusals import InvalidArgument
from octavo.cache.spec import LayerSpec
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS
from octavo.storage.ring_state import ring_rows
from tests.schedules import HandScheduler

DIM, LENGTH = 32, 90


def layout(*windows):
    return [LayerSpec("sliding", 4, 2, DIM, DIM, 0.2, window) for window in windows]


def scheduler_of(windows=(7, 40, 7), codecs=("f32", "f32")):
    return HandScheduler(layout(*windows), StorageKind.DENSE, max_seqs=3, max_context=LENGTH, codecs=codecs)


def draw(num_layers, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(LENGTH, heads, DIM, generator=generator) for heads in (4, 2, 2)] for _ in range(num_layers)]


def step(scheduler, slot, count, data):
    """The slot's next tokens; outputs per layer."""
    start = scheduler.written[slot]
    scheduler.cache.plan(scheduler.batch([(slot, [0] * count)]))
    return [
        scheduler.cache.attend(layer, *(x[start : start + count] for x in qkv)).clone()
        for layer, qkv in enumerate(data)
    ]


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("taken_at", [1, 6, 7, 8, 32, 40, 64])
def test_a_sequence_restored_from_a_chunk_boundary_goes_on_with_the_same_bits(taken_at, codec):
    scheduler, data = scheduler_of(codecs=(codec, codec)), draw(3)
    step(scheduler, 0, taken_at, data)
    state = scheduler.cache.ring_state(0)
    assert state.written == taken_at
    shares = [9, 1, 1, LENGTH - taken_at - 20, 1]
    expected = [step(scheduler, 0, count, data) for count in shares]
    step(scheduler, 2, 50, draw(3, seed=9))  # an earlier tenant
    scheduler.cache.restore_ring(2, state)
    scheduler.written[2] = taken_at
    for count, output in zip(shares, expected, strict=True):
        assert equal(step(scheduler, 2, count, data), output)


def test_a_state_is_the_window_in_position_order_and_nothing_more():
    scheduler, data = scheduler_of(windows=(7,)), draw(1)
    step(scheduler, 1, 3, data)
    k, v = scheduler.cache.ring_state(1).layers[0]
    assert torch.equal(k["values"], data[0][1][:3])
    step(scheduler, 1, 15, data)
    state = scheduler.cache.ring_state(1)
    k, v = state.layers[0]
    assert torch.equal(k["values"], data[0][1][11:18])
    assert torch.equal(v["values"], data[0][2][11:18])
    assert state.num_bytes == 2 * 7 * 2 * DIM * 4


def test_a_state_does_not_change_with_the_cache_it_came_from():
    scheduler, data = scheduler_of(), draw(3)
    step(scheduler, 0, 20, data)
    state = scheduler.cache.ring_state(0)
    before = [planes["values"].clone() for kv in state.layers.values() for planes in kv]
    step(scheduler, 0, 20, data)
    assert equal([planes["values"] for kv in state.layers.values() for planes in kv], before)


def test_a_sequence_of_no_tokens_has_an_empty_state():
    state = scheduler_of().cache.ring_state(0)
    assert (state.written, state.num_bytes) == (0, 0)


def test_rows_of_a_window_follow_one_another_around_the_ring():
    assert ring_rows(0, 5, 3).tolist() == [0, 1, 2]
    assert ring_rows(2, 5, 5).tolist() == [10, 11, 12, 13, 14]
    assert ring_rows(2, 5, 8).tolist() == [13, 14, 10, 11, 12]


@pytest.mark.parametrize(
    ("windows", "codecs"),
    [
        ((7, 40), ("f32", "f32")),
        ((7, 40, 8), ("f32", "f32")),
        ((7, 40, 7), ("f16", "f32")),
        ((7, 40, 7), ("f32", "q8_0")),
    ],
    ids=["layers", "window", "k-codec", "v-codec"],
)
def test_a_state_of_another_geometry_is_refused_before_anything_is_written(windows, codecs):
    source = scheduler_of(windows, codecs)
    step(source, 0, 30, draw(len(windows)))
    target, data = scheduler_of(), draw(3)
    step(target, 0, 30, data)
    before = target.cache.ring_state(0)
    with pytest.raises(InvalidArgument, match="ring state"):
        target.cache.restore_ring(0, source.cache.ring_state(0))
    after = target.cache.ring_state(0)
    for layer, kv in before.layers.items():
        for left, right in zip(kv, after.layers[layer], strict=True):
            assert equal(left.values(), right.values())
