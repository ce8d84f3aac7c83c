"""Forbids the tokens that a grammar does not allow, before anything else is done to logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """`bits` [len(rows), ceil(V / 32)] int32 are of the batch's `rows`: bit i of word w is token 32 w + i."""

    rows: Sequence[int]
    bits: npt.NDArray[np.int32]


class MaskTable:
    """Turns bits into what is added to logits: -inf for a token that is forbidden, and for the others -0.0, which
    changes no number, not even its sign. What is not finite stays so, hence an unsound row is still found.
    """

    def __init__(self, device: torch.device) -> None:
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._of_byte = torch.from_numpy(np.where(bits == 1, np.float32(-0.0), np.float32(-np.inf))).to(device)
        self._device = device

    def apply(self, logits: Tensor, masks: TokenMasks | None) -> Tensor:
        """Logits [R, V] float32 with the masks; a new tensor, or `logits` itself if there are none."""
        if masks is None:
            return logits
        data = torch.from_numpy(masks.bits.view(np.uint8)).to(self._device)
        added = functional.embedding(data.int(), self._of_byte).flatten(1)[:, : logits.shape[1]]  # [rows, V]
        if len(masks.rows) == len(logits):
            return logits + added
        rows = torch.tensor(masks.rows, device=self._device)
        return logits.index_add(0, rows, added)
