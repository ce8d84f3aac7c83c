"""Single tokens that are gathered together: what they attend to, and how many at a time."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.spec import LayerSpec
from octavo.step_batch import StorageKind
from octavo.storage import kv_cache, side_by_side
from octavo.storage.eager_attention import EagerAttention
from octavo.storage.route import Route
from tests.schedules import HandScheduler, random_shares
from tests.storage.shifted_sequence import Bookkeeping

DIM = 32
LENGTHS = (66, 17, 1, 34)
LAYOUT = [
    LayerSpec("full", 6, 2, DIM, DIM, 0.25),
    LayerSpec("sliding", 6, 2, DIM, DIM, 0.25, 40, 5.0),
    LayerSpec("full", 6, 2, DIM, DIM, 0.25, sink_logits=True),
]
TOKEN_BYTES = 2 * 2 * DIM * 4


@pytest.fixture
def choose(monkeypatch):
    """choose(together) decides how the next caches attend."""

    def decide(together):
        def attention(spec, store, block_size, device, switches, staging):
            return EagerAttention(spec, block_size, device, "asked for by a test", side_by_side=together)

        monkeypatch.setattr(kv_cache, "_group_attention", attention)

    return decide


def poison(cache):
    """Memory that nobody wrote holds NaN."""
    for store in cache._layers.values():
        for rows in (store.blocks, store.ring):
            planes = [] if rows is None else [*rows.k.planes().values(), *rows.v.planes().values()]
            for plane in planes:
                if plane.dtype.is_floating_point:
                    plane.fill_(torch.nan)


def run(storage, codecs):
    """Outputs of every step and layer, and the cache."""
    generator = torch.Generator().manual_seed(3)
    scheduler = HandScheduler(LAYOUT, storage, max_seqs=len(LENGTHS), max_context=max(LENGTHS) + 8, codecs=codecs)
    poison(scheduler.cache)
    scheduler.cache.set_sinks(2, torch.tensor([0.5, -3.0, 9.0, float("-inf"), 0.0, 2.0]))
    steps = random_shares(LENGTHS, 5)
    steps += [[(slot, 1) for slot in range(len(LENGTHS))]] * 3 + [[(0, 1), (1, 3), (3, 1)], [(2, 4), (1, 1)]]
    outputs = []
    for shares in steps:
        scheduler.cache.plan(scheduler.batch([(slot, [0] * count) for slot, count in shares]))
        total = sum(count for _, count in shares)
        for layer in range(len(LAYOUT)):
            q, k, v = (torch.randn(total, heads, DIM, generator=generator) for heads in (6, 2, 2))
            outputs.append(scheduler.cache.attend(layer, q, k, v).clone())
    return outputs, scheduler.cache


@pytest.mark.parametrize("most_tokens", [1 << 20, 150, 1], ids=lambda most: f"{most} at a time")
@pytest.mark.parametrize("storage", list(StorageKind), ids=lambda kind: kind.value)
@pytest.mark.parametrize("codecs", [("f16", "f16"), ("q8_0", "q4_0")], ids=lambda names: "-".join(names))
def test_together_they_have_what_each_has_alone(choose, monkeypatch, storage, codecs, most_tokens):
    monkeypatch.setattr(side_by_side, "MOST_GATHERED_BYTES", most_tokens * TOKEN_BYTES)
    choose(together=False)
    expected, one_by_one = run(storage, codecs)
    choose(together=True)
    outputs, cache = run(storage, codecs)
    for got, want in zip(outputs, expected, strict=True):
        assert (got - want).abs().max() < 2e-6 * want.abs().max()
    assert cache.routes.counts == one_by_one.routes.counts
    assert set(cache.routes.by_route()) <= {Route.GATHER.value, Route.DENSE.value, Route.RING.value}


def test_what_is_gathered_at_a_time_is_bounded_and_short_sequences_do_not_pay_for_long_ones(choose, monkeypatch):
    monkeypatch.setattr(side_by_side, "MOST_GATHERED_BYTES", 100 * TOKEN_BYTES)
    choose(together=True)
    scheduler = HandScheduler(LAYOUT[:1], StorageKind.PAGED, max_seqs=5, max_context=300, codecs=("f16", "f16"))
    for slot, count in enumerate((299, 9, 49, 8, 44)):
        scheduler.cache.plan(scheduler.batch([(slot, [0] * count)]))
        scheduler.cache.attend(0, *(torch.zeros(count, heads, DIM) for heads in (6, 2, 2)))
    scheduler.cache.plan(scheduler.batch([(slot, [0]) for slot in range(5)]))
    (plan,) = scheduler.cache._plans
    parts = [(part.places.tolist(), len(part.stored) // part.num_rows) for part in plan.together]
    assert parts == [([3, 1], 10), ([4, 2], 50), ([0], 300)]


def test_keys_of_a_shifted_context_are_found_past_the_gap(choose):
    outputs = []
    for together in (False, True):
        choose(together)
        generator = torch.Generator().manual_seed(4)
        books = Bookkeeping(LAYOUT[:2], 5, max_context=96, codecs=("f16", "f16"))
        books.cache.set_rotation(lambda layer: torch.full((DIM // 2,), 0.1))
        for count, drop in ((70, 0), (1, 0), (1, 32), (1, 0), (1, 16), (1, 0)):
            if drop:
                books.drop(drop)
            books.cache.plan(books.batch([0] * count))
            for layer in range(2):
                q, k, v = (torch.randn(count, heads, DIM, generator=generator) for heads in (6, 2, 2))
                outputs.append(books.cache.attend(layer, q, k, v).clone())
    half = len(outputs) // 2
    for want, got in zip(outputs[:half], outputs[half:], strict=True):
        assert (got - want).abs().max() < 2e-6 * want.abs().max()
