"""What decode steps overwrote in rings, so that the last two can be taken back.

Owns saved rows, and how far each slot's steps have come; blocks need no undo, as rows past the end are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor

from octavo.cache.refusals import InvalidArgument
from octavo.errors import EngineFault
from octavo.step_batch import StepBatch, StorageKind
from octavo.storage.layer_store import KVRows

DEPTH = 2


class DecodeLookahead:
    """While it is entered, single tokens of a sequence can be rewound, up to DEPTH of them. Not reentrant."""

    def __init__(self, opened: Callable[[], None], closed: Callable[[], None]) -> None:
        self._opened = opened
        self._closed = closed

    def __enter__(self) -> None:
        self._opened()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed()


@dataclass(slots=True)
class _Slot:
    """Its tenant has `written` tokens in storage; the last `undoable` of them, one a step, can be taken back."""

    generation: int | None = None
    storage: StorageKind = StorageKind.PAGED
    written: int = 0
    undoable: int = 0


class _Saved:
    """Overwritten rows of the rings of equal windows: position p of a slot is saved at `slot * DEPTH + p % DEPTH`."""

    def __init__(self, window: int, planes: Sequence[Tensor], max_seqs: int) -> None:
        self._window = window
        self._planes = planes
        self._rows = [_rows_like(plane, max_seqs * DEPTH) for plane in planes]
        # Where rows pass through on their way, as a gather into scattered rows takes two steps. Planes take turns.
        self._passage = {(plane.dtype, plane.shape[1:]): _rows_like(plane, max_seqs) for plane in planes}

    def record(self, slots: Sequence[int], positions: Sequence[int]) -> None:
        """Save what position p of each slot is about to overwrite. Allocates nothing per layer."""
        in_ring, in_log = self._indices(slots, positions)
        for plane, rows in zip(self._planes, self._rows, strict=True):
            passage = self._passage[plane.dtype, plane.shape[1:]][: len(slots)]
            rows.index_copy_(0, in_log, torch.index_select(plane, 0, in_ring, out=passage))

    def restore(self, slots: Sequence[int], positions: Sequence[int]) -> None:
        in_ring, in_log = self._indices(slots, positions)
        for plane, rows in zip(self._planes, self._rows, strict=True):
            plane.index_copy_(0, in_ring, rows.index_select(0, in_log))

    def _indices(self, slots: Sequence[int], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        window, device = self._window, self._planes[0].device
        pairs = list(zip(slots, positions, strict=True))
        in_ring = torch.tensor([slot * window + p % window for slot, p in pairs], device=device)
        return in_ring, torch.tensor([slot * DEPTH + p % DEPTH for slot, p in pairs], device=device)


class UndoLog:
    """Follows the steps of every slot. Rings' rows are saved only while a `DecodeLookahead` is entered.

    Rows are saved for all layers when a step is planned, before its first write: a step that fails halfway can be
    rewound too.
    """

    def __init__(self, rings: Sequence[tuple[int, KVRows]], max_seqs: int) -> None:
        """`rings`: window and rows of every layer that has a ring."""
        self._rings: dict[int, list[Tensor]] = {}
        for window, kv in rings:
            self._rings.setdefault(window, []).extend((*kv.k.planes().values(), *kv.v.planes().values()))
        self._slots = [_Slot() for _ in range(max_seqs)]
        self._saved: list[_Saved] | None = None  # None: not entered

    def lookahead(self) -> DecodeLookahead:
        return DecodeLookahead(self._open, self._close)

    def written(self, slot: int) -> int:
        """Tokens that the slot's tenant has in storage, as far as steps and `set_written` have told."""
        return self._slots[slot].written

    def storage(self, slot: int) -> StorageKind:
        """Where the slot's tenant keeps its K/V, as its last step said."""
        return self._slots[slot].storage

    def set_written(self, slot: int, written: int) -> None:
        """Storage was filled or cut otherwise than by a step: nothing before can be taken back."""
        state = self._slots[slot]
        state.written, state.undoable = written, 0

    def forget(self, slot: int) -> None:
        """The slot's storage was changed otherwise than by a step, and holds as many tokens as before."""
        self._slots[slot].undoable = 0

    def follow(self, batch: StepBatch) -> None:
        """Save what the rings are about to lose, and take note of the step. Before its first write."""
        if self._saved is not None:
            singles = [row for row in batch.rows if row.num_tokens == 1 and row.storage is StorageKind.DENSE]
            if singles:
                for saved in self._saved:
                    saved.record([row.slot for row in singles], [row.start for row in singles])
        for row in batch.rows:
            state, num_tokens = self._slots[row.slot], len(row.token_ids)
            if self._saved is None or num_tokens != 1:
                state.undoable = 0
            elif row.generation != state.generation or row.start != state.written:
                state.undoable = 1
            else:
                state.undoable = min(DEPTH, state.undoable + 1)
            state.generation, state.storage, state.written = row.generation, row.storage, row.start + num_tokens

    def rewind(self, slots: Sequence[int], n: int) -> None:
        """Take back the last `n` steps of each slot, newest first. Raises `InvalidArgument`, having changed nothing."""
        if not 1 <= n <= DEPTH or len(set(slots)) != len(slots):
            raise InvalidArgument(f"cannot rewind slots {list(slots)} by {n}; give each once, and 1 to {DEPTH} steps")
        for slot in slots:
            if not 0 <= slot < len(self._slots):
                raise InvalidArgument(f"cannot rewind slot {slot}; there are slots 0 to {len(self._slots) - 1}")
            if self._slots[slot].undoable < n:
                raise InvalidArgument(
                    f"cannot rewind slot {slot} by {n} decode steps; {self._slots[slot].undoable} can be taken back: "
                    "only single tokens in a DecodeLookahead, with no other change since"
                )
        states = [self._slots[slot] for slot in slots]
        in_rings = [slot for slot in slots if self._slots[slot].storage is StorageKind.DENSE]
        for _ in range(n):
            for state in states:
                state.written -= 1
                state.undoable -= 1
            for saved in self._saved or ():
                if in_rings:
                    saved.restore(in_rings, [self._slots[slot].written for slot in in_rings])

    def _open(self) -> None:
        if self._saved is not None:
            raise EngineFault("a DecodeLookahead is entered already; leave it before the next")
        self._saved = [_Saved(window, planes, len(self._slots)) for window, planes in self._rings.items()]

    def _close(self) -> None:
        self._saved = None
        for slot in range(len(self._slots)):
            self.forget(slot)


def _rows_like(plane: Tensor, num_rows: int) -> Tensor:
    # Outside inference mode, so that steps in and out of it may write these rows.
    with torch.inference_mode(False):
        return torch.empty(num_rows, *plane.shape[1:], dtype=plane.dtype, device=plane.device)
