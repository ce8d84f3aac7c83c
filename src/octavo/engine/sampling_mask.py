"""Forbids the tokens that a grammar does not allow, before anything else is done to logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.engine.sampling_workspace import Workspace, to_device

_FEW = 8  # one in so many: then it is less work to look at those alone


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """`bits` [len(rows), ceil(V / 32)] int32 are of the batch's `rows`: bit i of word w is token 32 w + i."""

    rows: Sequence[int]
    bits: npt.NDArray[np.int32]

    def few(self, row: int, vocab_size: int) -> Tensor | None:
        """Ids in ascending order, int64 on the CPU, of the tokens that `row` may have; None if they are many."""
        if row not in self.rows:
            return None
        bits = np.unpackbits(self.bits[self.rows.index(row)].view(np.uint8), bitorder="little")[:vocab_size]
        ids = np.flatnonzero(bits)
        return torch.from_numpy(ids) if len(ids) <= vocab_size // _FEW else None


class MaskTable:
    """Turns bits into what is added to logits: -inf for a token that is forbidden, and for the others -0.0, which
    changes no number, not even its sign. What is not finite stays so, hence an unsound row is still found.
    """

    def __init__(self, device: torch.device, workspace: Workspace) -> None:
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._of_byte = torch.from_numpy(np.where(bits == 1, np.float32(-0.0), np.float32(-np.inf))).to(device)
        self._device = device
        self._workspace = workspace

    def apply(self, logits: Tensor, masks: TokenMasks | None) -> Tensor:
        """Logits [R, V] float32 with the masks: scratch, or `logits` itself if there are none."""
        if masks is None:
            return logits
        vocab_size = logits.shape[1]
        data = to_device(torch.from_numpy(masks.bits.view(np.uint8)), self._device)  # [rows, bytes]
        added = self._workspace.take("mask", len(data), 8 * data.shape[1], torch.float32)
        torch.index_select(self._of_byte, 0, data.flatten().int(), out=added.view(-1, 8))
        if len(data) == len(logits):
            return added[:, :vocab_size].add_(logits)
        masked = self._workspace.take("masked", len(logits), vocab_size, torch.float32).copy_(logits)
        rows = to_device(torch.tensor(masks.rows), self._device)
        return masked.index_add_(0, rows, added[:, :vocab_size])
