"""Block ids of all slots of one group of layers on the device. Knows neither steps nor kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.kernels.step_staging import StepStaging
from octavo.storage.block_table import BlockTable


class DeviceTables:
    """One flat int32 tensor, in which every slot owns a fixed span.

    Only ids that changed are sent, with their places, in stream order; `uploaded_ids` counts them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seen: list[int] = []  # per slot, how many changes of its table were taken over
        self._ids: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._changed: list[NDArray[np.int64]] = []  # places that the device has yet to be told of
        self._on_their_way: tuple[Tensor, Tensor] | None = None
        self.device_ids = torch.zeros(0, dtype=torch.int32, device=device)
        self.uploaded_ids = 0

    def update(
        self, slots: Sequence[int], tables: Sequence[BlockTable], group: int, num_slots: int
    ) -> NDArray[np.int64]:
        """Take note of what has changed in the tables of `slots`; returns where each begins."""
        span = len(tables[0].columns(group))
        if len(self._ids) != num_slots * span:
            self._ids = np.zeros(num_slots * span, dtype=np.int32)
            self._seen = [-1] * num_slots
            self._changed.clear()
            self.device_ids = torch.zeros(num_slots * span, dtype=torch.int32, device=self._device)
        for slot, table in zip(slots, tables, strict=True):
            if self._seen[slot] != table.num_changes:
                self._seen[slot] = table.num_changes
                begin, ids = slot * span, table.columns(group)
                places = np.flatnonzero(self._ids[begin : begin + span] != ids)
                if len(places):
                    self._ids[begin + places] = ids[places]
                    self._changed.append(begin + places)
        return np.array(slots, dtype=np.int64) * span

    def stored_rows(self, begins: NDArray[np.int64], columns: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
        """Stored row of one column of each table, where these begin as `update` said."""
        ids: NDArray[np.int64] = self._ids[begins + columns // block_size].astype(np.int64)
        return ids * block_size + columns % block_size

    def stage(self, staging: StepStaging) -> None:
        """Put what has changed among what is sent; again, if it never was."""
        if self._changed:
            places = np.unique(np.concatenate(self._changed))
            self._on_their_way = staging.put(places), staging.put(self._ids[places])

    def apply(self) -> None:
        """Once it was sent: have the device put the ids into their places."""
        if self._on_their_way is not None:
            places, ids = self._on_their_way
            self.device_ids.index_copy_(0, places, ids)
            self.uploaded_ids += len(places)
            self._on_their_way = None
            self._changed.clear()
