"""Block ids on a device: what has changed and nothing else is sent, and is not lost with a step that breaks off."""

from __future__ import annotations

import torch

from octavo.kernels.step_staging import StepStaging
from octavo.step_batch import FreshBlocks, StepRow, StorageKind
from octavo.storage.block_table import BlockTable
from octavo.storage.device_tables import DeviceTables

CPU = torch.device("cpu")


class Slots:
    """Three slots of tables with three columns, and their copy on a device."""

    def __init__(self):
        self.tables = [BlockTable(1, 1, 16) for _ in range(3)]
        self.copy = DeviceTables(CPU)
        self.staging = StepStaging(CPU)

    def gain(self, slot, first, ids, generation=1):
        fresh = (FreshBlocks(0, first, tuple(ids)),)
        self.tables[slot].update(StepRow(slot, generation, StorageKind.PAGED, (0,), 0, fresh, (0,), True))

    def step(self, *slots, broken_off=False):
        begins = self.copy.update(list(slots), [self.tables[slot] for slot in slots], 0, 3)
        self.staging.begin()
        self.copy.stage(self.staging)
        if not broken_off:
            self.staging.send()
            self.copy.apply()
        return begins.tolist()


def test_every_slot_has_a_span_of_its_own_and_a_new_tenants_ids_replace_the_old_ones():
    slots = Slots()
    slots.gain(1, 0, [4, 5])
    assert slots.step(1) == [3]
    slots.gain(1, 0, [7], generation=2)
    slots.gain(0, 0, [1, 2])
    assert slots.step(1, 0) == [3, 0]
    assert slots.copy.device_ids.tolist() == [1, 2, 0, 7, 5, 0, 0, 0, 0]


def test_a_fresh_block_is_one_id_and_a_step_without_one_sends_none():
    slots = Slots()
    slots.gain(2, 0, [9])
    slots.step(2)
    assert slots.copy.uploaded_ids == 1
    slots.gain(2, 1, [3])
    slots.step(2)
    assert slots.copy.uploaded_ids == 2
    slots.step(2)
    assert slots.copy.uploaded_ids == 2
    assert slots.copy.device_ids.tolist()[6:] == [9, 3, 0]


def test_ids_of_a_step_that_was_broken_off_are_sent_with_the_next():
    slots = Slots()
    slots.gain(0, 0, [9])
    slots.step(0, broken_off=True)
    assert slots.copy.device_ids.tolist()[0] == 0
    slots.step(0)
    assert slots.copy.device_ids.tolist()[0] == 9


def test_an_id_that_changed_twice_before_it_was_sent_is_the_last_one():
    slots = Slots()
    slots.gain(0, 0, [9])
    slots.step(0, broken_off=True)
    slots.gain(0, 0, [8, 6], generation=2)
    slots.step(0)
    assert slots.copy.device_ids.tolist()[:2] == [8, 6]
