"""The typed refusals of the block bookkeeping. Whoever raises one has changed nothing."""

from __future__ import annotations

from octavo.errors import CapacityError, EngineFault


class BlocksExhausted(CapacityError):
    """Fewer blocks are free, or free in one contiguous run, than were asked for."""


class SlotsExhausted(CapacityError):
    """Every sequence slot is taken."""


class StaleHandle(EngineFault):
    """The handle's sequence was released or reset; whatever its slot holds now belongs to someone else."""


class DuplicateSequence(EngineFault):
    """A sequence with this id is already live."""


class InvalidArgument(EngineFault):
    """An argument that no correct caller passes: a negative count, a free block to retain, a rewind too far."""
