"""Decode steps taken back: rings hold, to the bit, what they would if those steps had never been planned."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.cache_pool import CachePool
from octavo.cache.refusals import InvalidArgument
from octavo.cache.spec import LayerSpec
from octavo.errors import EngineFault
from octavo.step_batch import StepBatch, StorageKind
from octavo.storage.compiled_attention import CompiledAttention
from octavo.storage.snapshot import ModelIdentity
from tests.schedules import HandScheduler

DIM, LENGTH, WINDOW = 32, 80, 7
LAYOUT = [
    LayerSpec("sliding", 4, 2, DIM, DIM, 0.2, WINDOW),
    LayerSpec("full", 4, 2, DIM, DIM, 0.2),
    LayerSpec("sliding", 4, 2, DIM, DIM, 0.2, 20),
    LayerSpec("sliding", 4, 2, DIM, DIM, 0.2, 1),
]
# Where the steps that are taken back begin: in an empty ring, on the edge of warm-up, and before and after wraps.
STARTS = (0, 1, WINDOW - 2, WINDOW - 1, WINDOW, 2 * WINDOW - 1, 18, 19, 20, 40, 63)


@pytest.fixture(params=["compiled", "eager"])
def kernels(request, monkeypatch):
    """Both ways to attend; where there are no compiled kernels, the same one twice."""
    if request.param == "eager":
        monkeypatch.setattr(CompiledAttention, "refusal", staticmethod(lambda *_: "asked for by a test"))


def draw(slot, change=0):
    """q, k, v per layer of one sequence: [LENGTH, H, D]. `change` makes other values of the same shapes."""
    generator = torch.Generator().manual_seed(1000 * change + slot)
    return [[torch.randn(LENGTH, heads, DIM, generator=generator) for heads in (4, 2, 2)] for _ in LAYOUT]


class Driver:
    """A cache whose slots are stepped by hand. `rewind` rewinds storage and bookkeeping together."""

    def __init__(self, storage=StorageKind.DENSE, max_seqs=3, codecs=("f16", "f32")):
        self.scheduler = HandScheduler(LAYOUT, storage, max_seqs=max_seqs, max_context=LENGTH, codecs=codecs)
        self.cache = self.scheduler.cache

    def step(self, shares, change=0):
        """(slot, count) shares: the next tokens of each slot's sequence. Outputs per layer, packed."""
        starts = [self.scheduler.written[slot] for slot, _ in shares]
        self.cache.plan(self.scheduler.batch([(slot, [0] * count) for slot, count in shares]))
        outputs = []
        for layer in range(len(LAYOUT)):
            drawn = [(draw(slot, change)[layer], at, at + n) for (slot, n), at in zip(shares, starts, strict=True)]
            packed = [torch.cat([qkv[i][start:stop] for qkv, start, stop in drawn]) for i in range(3)]
            outputs.append(self.cache.attend(layer, *packed).clone())
        return outputs

    def rewind(self, slots, n):
        self.cache.rewind(slots, n)
        for slot in slots:
            self.scheduler.written[slot] -= n

    def rings(self):
        """Every byte of every ring."""
        planes = [
            plane
            for layer in self.cache._layers.values()
            if layer.ring is not None
            for plane in (*layer.ring.k.planes().values(), *layer.ring.v.planes().values())
        ]
        return [plane.clone().view(torch.uint8) for plane in planes]


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("n", [1, 2])
def test_rewound_rings_hold_the_bits_of_never_having_written(start, n, kernels):
    driver = Driver()
    driver.step([(2, 30)])
    if start:
        driver.step([(0, start)])
    before = driver.rings()
    with driver.cache.decode_lookahead():
        for _ in range(n):
            driver.step([(0, 1)], change=1)
        assert not equal(driver.rings(), before)
        driver.rewind([0], n)
        assert equal(driver.rings(), before)
        # And the tokens that come instead give the bits of a sequence that never had the others.
        got = [driver.step([(0, 1)]) for _ in range(3)]
    fresh = Driver()
    fresh.step([(2, 30)])
    if start:
        fresh.step([(0, start)])
    expected = [fresh.step([(0, 1)]) for _ in range(3)]
    assert all(equal(a, b) for a, b in zip(got, expected, strict=True))


def test_one_step_at_a_time_goes_back_over_two_and_no_further():
    driver = Driver()
    driver.step([(0, 12)])
    states = []
    with driver.cache.decode_lookahead():
        for _ in range(5):
            states.append(driver.rings())
            driver.step([(0, 1)])
        driver.rewind([0], 1)
        assert equal(driver.rings(), states[4])
        driver.rewind([0], 1)
        assert equal(driver.rings(), states[3])
        with pytest.raises(InvalidArgument, match="slot 0 by 1 decode steps; 0 can be taken back"):
            driver.cache.rewind([0])
        assert equal(driver.rings(), states[3])
        # What was taken back makes room for others, which can be taken back as well.
        for _ in range(3):
            states.append(driver.rings())
            driver.step([(0, 1)], change=2)
        driver.rewind([0], 2)
        assert equal(driver.rings(), states[-2])


@pytest.mark.parametrize("n", [1, 2])
def test_a_long_run_can_be_rewound_wherever_it_stands(n):
    driver = Driver()
    with driver.cache.decode_lookahead():
        history = [driver.rings()]
        for position in range(60):
            driver.step([(0, 1)], change=1)
            if position >= n:
                driver.rewind([0], n)
                assert equal(driver.rings(), history[position + 1 - n])
                for _ in range(n):
                    driver.step([(0, 1)], change=1)
            history.append(driver.rings())


def mixed(driver, dense, paged):
    """A step of dense slots and paged ones: `HandScheduler` lays out one kind, so a row's kind is changed by hand."""
    rows = [driver.scheduler.row(slot, [0] * count) for slot, count in (*dense, *paged)]
    rows = [
        row._replace(storage=StorageKind.DENSE if i < len(dense) else StorageKind.PAGED) for i, row in enumerate(rows)
    ]
    driver.cache.plan(StepBatch(tuple(rows)))
    outputs = []
    for layer in range(len(LAYOUT)):
        packed = [torch.cat([draw(r.slot)[layer][i][r.start : r.stop] for r in rows]) for i in range(3)]
        outputs.append(driver.cache.attend(layer, *packed).clone())
    return outputs


def test_a_batch_of_dense_and_paged_rows_is_rewound_row_by_row(kernels):
    got, expected = Driver(), Driver()
    for driver in (got, expected):
        mixed(driver, [(0, 25)], [(1, 10)])
        mixed(driver, [(2, 3)], [])
    before = got.rings()
    with got.cache.decode_lookahead():
        mixed(got, [(0, 1), (2, 1)], [(1, 1)])
        middle = got.rings()
        mixed(got, [(0, 1)], [(1, 1)])
        with pytest.raises(InvalidArgument, match="slot 2 by 2"):
            got.cache.rewind([0, 1, 2], 2)
        got.rewind([1], 2)
        assert not equal(got.rings(), middle)
        got.rewind([0], 1)
        assert equal(got.rings(), middle)
        got.rewind([2, 0], 1)
        assert equal(got.rings(), before)
        outputs = [mixed(got, [(0, 1), (2, 1)], [(1, 1)]) for _ in range(3)]
    for output in outputs:
        assert equal(output, mixed(expected, [(0, 1), (2, 1)], [(1, 1)]))


@pytest.mark.parametrize("storage", list(StorageKind), ids=lambda s: s.value)
def test_a_rewound_row_that_decodes_another_token_gives_the_bits_of_never_having_decoded_the_first(storage, kernels):
    got, expected = Driver(storage), Driver(storage)
    for driver in (got, expected):
        driver.step([(0, 15)])
    with got.cache.decode_lookahead():
        got.step([(0, 1)], change=1)
        got.step([(0, 1)], change=1)  # in a new block
        got.rewind([0], 2)
        for _ in range(4):
            assert equal(got.step([(0, 1)]), expected.step([(0, 1)]))


def interruptions():
    def chunk(driver):
        driver.step([(0, 2)])

    def new_tenant(driver):
        row = driver.scheduler.row(0, [0] * 3)
        driver.cache.plan(StepBatch((row._replace(generation=2, start=0, token_ids=(0, 0, 0)),)))

    def restored(driver):
        driver.cache.restore_ring(0, driver.cache.ring_state(0))

    def imported(driver):
        pool = CachePool(driver.scheduler.groups, 16, [99] * len(driver.scheduler.groups), 3)
        handle = pool.allocate("a", StorageKind.DENSE, LENGTH)
        pool.append(handle, 12)
        sequence = pool.sequence(handle)
        driver.cache.import_(driver.cache.export(sequence, range(12), ModelIdentity("a test", "0" * 64, "")), sequence)

    return [chunk, new_tenant, restored, imported]


@pytest.mark.parametrize("interrupt", interruptions(), ids=lambda f: f.__name__)
def test_whatever_else_changes_a_slot_ends_what_can_be_taken_back_of_it_alone(interrupt):
    driver = Driver()
    driver.step([(0, 10)])
    driver.step([(1, 10)])
    with driver.cache.decode_lookahead():
        driver.step([(0, 1), (1, 1)])
        driver.step([(0, 1), (1, 1)])
        interrupt(driver)
        before = driver.rings()
        for slots, n in (([0], 1), ([1, 0], 1), ([0], 2)):
            with pytest.raises(InvalidArgument, match=f"slot 0 by {n} decode steps; 0 can be taken back"):
                driver.cache.rewind(slots, n)
        assert equal(driver.rings(), before)
        driver.rewind([1], 2)


def test_a_trim_that_storage_was_not_told_of_ends_what_can_be_taken_back():
    driver = Driver()
    driver.step([(0, 10)])
    with driver.cache.decode_lookahead():
        driver.step([(0, 1)])
        driver.step([(0, 1)])
        driver.scheduler.written[0] -= 1
        driver.step([(0, 1)])
        with pytest.raises(InvalidArgument, match="1 can be taken back"):
            driver.cache.rewind([0], 2)
        driver.rewind([0], 1)


def test_nothing_can_be_taken_back_outside_the_scope():
    driver = Driver()
    driver.step([(0, 10)])
    driver.step([(0, 1)])
    with pytest.raises(InvalidArgument):
        driver.cache.rewind([0])
    with driver.cache.decode_lookahead():
        with pytest.raises(InvalidArgument):  # not what came before it either
            driver.cache.rewind([0])
        driver.step([(0, 1)])
        with pytest.raises(EngineFault, match="entered already"), driver.cache.decode_lookahead():
            pass
        assert driver.cache._undo._slots[0].undoable == 1
    with pytest.raises(InvalidArgument):
        driver.cache.rewind([0])
    with driver.cache.decode_lookahead(), pytest.raises(InvalidArgument):
        driver.cache.rewind([0])


@pytest.mark.parametrize(("slots", "n"), [([0], 0), ([0], 3), ([0], -1), ([0, 0], 1), ([3], 1), ([-1], 1)])
def test_rewinds_that_cannot_be_are_refused_before_anything_is_touched(slots, n):
    driver = Driver()
    with driver.cache.decode_lookahead():
        driver.step([(0, 1)])
        driver.step([(0, 1)])
        before = driver.rings()
        with pytest.raises(InvalidArgument, match="cannot rewind"):
            driver.cache.rewind(slots, n)
        assert equal(driver.rings(), before)
        driver.rewind([0], 2)


def test_a_step_that_failed_halfway_can_be_rewound():
    driver = Driver()
    driver.step([(0, 30)])
    before = driver.rings()
    with driver.cache.decode_lookahead():
        driver.cache.plan(driver.scheduler.batch([(0, [0])]))
        driver.cache.attend(0, *(x[30:31] for x in draw(0, 1)[0]))  # and layers 1 to 3 never come
        assert not equal(driver.rings(), before)
        driver.rewind([0], 1)
        assert equal(driver.rings(), before)


def test_steps_in_and_out_of_inference_mode_can_be_rewound():
    driver = Driver()
    driver.step([(0, 10)])
    before = driver.rings()
    with torch.inference_mode():
        scope = driver.cache.decode_lookahead()
        scope.__enter__()
        driver.step([(0, 1)])
    driver.step([(0, 1)])
    driver.rewind([0], 2)
    scope.__exit__(None, None, None)
    assert equal(driver.rings(), before)
