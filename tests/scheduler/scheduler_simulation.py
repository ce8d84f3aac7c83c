"""A stand-in for model and storage: follows a scheduler's steps and checks each row against what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.cache.cache_pool import CachePool
from octavo.cache.spec import CacheGroup, LayerSpec
from octavo.request import Request, RequestState
from octavo.sampling_params import SamplingParams
from octavo.scheduler.scheduled_step import UNKNOWN_TOKEN, ScheduledStep
from octavo.step_batch import StepRow, StorageKind

BLOCK_SIZE = 16
WINDOW = 20
GROUPS = (
    CacheGroup(LayerSpec("full", 4, 2, 64, 64, 0.125), (0,)),
    CacheGroup(LayerSpec("sliding", 4, 2, 64, 64, 0.125, WINDOW), (1,)),
)


def make_pool(
    num_blocks: tuple[int, ...] = (12, 12), max_seqs: int = 3, max_append_tokens: int | None = None
) -> CachePool:
    """With one number of blocks it has no windows, and no rings."""
    return CachePool(GROUPS[: len(num_blocks)], BLOCK_SIZE, num_blocks, max_seqs, max_append_tokens)


def make_state(request_id: str, num_prompt: int, max_new: int, priority: int = 0) -> RequestState:
    """A request whose prompt ids tell its name and their positions apart."""
    prompt = tuple(hash_token(request_id, position) for position in range(num_prompt))
    return _state(request_id, prompt, max_new, priority)


def make_common_state(request_id: str, num_prompt: int, max_new: int, stem: int = 0, priority: int = 0) -> RequestState:
    """A request whose prompt equals every other's of the same `stem`, as far as it goes."""
    prompt = tuple(stem * 1_000 + position for position in range(num_prompt))
    return _state(request_id, prompt, max_new, priority)


def _state(request_id: str, prompt: tuple[int, ...], max_new: int, priority: int) -> RequestState:
    request = Request(request_id, prompt, SamplingParams(), seed=0, priority=priority)
    return RequestState(request, len(prompt) + max_new)


def hash_token(request_id: str, position: int) -> int:
    return (int(request_id.removeprefix("r")) * 1_000 + position) * 2 + 1


@dataclass(frozen=True)
class RingCopy:
    """A slot's ring at one position."""

    rows: dict[int, int]
    num_bytes: int = 1


class StorageSimulation:
    """Keeps, per group and physical row, a digest of the tokens it was computed from; per slot a ring of such.

    Learns tables from `FreshBlocks` alone, as a planner must. `answer` is what the model says after given tokens;
    their number unless given.
    """

    def __init__(self, answer: Callable[[tuple[int, ...]], int] = len, num_groups: int = len(GROUPS)) -> None:
        self.answer = answer
        self.num_groups = num_groups
        self.rows: dict[tuple[int, int, int], int] = {}
        self.rings: dict[int, dict[int, int]] = {}
        self.tables: dict[tuple[int, int], dict[int, int]] = {}
        self.generations: dict[int, int] = {}

    def run(self, step: ScheduledStep, before: Sequence[int | None] = ()) -> list[int | None]:
        """Write every row's tokens, check that all it must see is in place, and answer with a token where asked.

        `before`: the tokens of the step that `step` follows, if the scheduler does not know them yet.
        """
        for copy in step.batch.copies:
            for offset in range(BLOCK_SIZE):
                source = self.rows.get((copy.group, copy.source, offset))
                if source is not None:
                    self.rows[copy.group, copy.target, offset] = source
        for i, snapshot in step.restores:
            assert isinstance(snapshot, RingCopy)
            self.rings[step.batch.rows[i].slot] = dict(snapshot.rows)
        texts = [self._text(step, i, before) for i in range(len(step.states))]
        for row, text in zip(step.batch.rows, texts, strict=True):
            self._write(row, text)
        for row, text in zip(step.batch.rows, texts, strict=True):
            self._check_visible(row, text)
        rows = zip(step.batch.rows, texts, strict=True)
        return [self.answer(text) if row.sample else None for row, text in rows]

    def _text(self, step: ScheduledStep, i: int, before: Sequence[int | None]) -> tuple[int, ...]:
        row, state = step.batch.rows[i], step.states[i]
        drawn = -1 if step.follows is None else step.follows[i]
        if drawn < 0:
            assert row.token_ids == state.tokens(row.start, row.stop)
            return state.tokens(0, row.stop)
        token_id = [each for each in before if each is not None][drawn]
        assert row.token_ids == (UNKNOWN_TOKEN,) and row.start == state.num_tokens
        return (*state.tokens(0, row.start), token_id)

    def captured(self, step: ScheduledStep) -> list[RingCopy]:
        """What `complete` is given beside the tokens of a step that ran."""
        return [RingCopy(dict(self.rings[step.batch.rows[i].slot])) for i in step.captures]

    def _write(self, row: StepRow, text: tuple[int, ...]) -> None:
        if self.generations.get(row.slot) != row.generation:
            self.generations[row.slot] = row.generation
            for group in range(self.num_groups):
                self.tables[row.slot, group] = {}
        for fresh in row.fresh:
            self.tables[row.slot, fresh.group].update(enumerate(fresh.block_ids, fresh.first))
        for group, position in self._positions(row, row.start, row.stop):
            self.rows[self._where(row, group, position)] = hash(text[: position + 1])
        if row.storage is StorageKind.DENSE and self.num_groups > 1:
            ring = self.rings.setdefault(row.slot, {})
            for position in range(max(0, row.start - WINDOW + 1), row.start):
                assert ring.get(position % WINDOW) == hash(text[: position + 1]), "a ring has other tokens"
            for position in range(row.start, row.stop):
                ring[position % WINDOW] = hash(text[: position + 1])

    def _check_visible(self, row: StepRow, text: tuple[int, ...]) -> None:
        for group, position in self._positions(row, 0, row.stop):
            window = GROUPS[group].spec.window
            first = max(0, row.start - window + 1) if window else 0
            assert row.live_start[group] <= first, "a position that the row sees was trimmed"
            if position >= first:
                written = self.rows[self._where(row, group, position)]
                assert written == hash(text[: position + 1]), "a row was computed from other tokens"

    def _positions(self, row: StepRow, start: int, stop: int) -> list[tuple[int, int]]:
        groups = [0] if row.storage is StorageKind.DENSE else range(self.num_groups)
        return [(group, position) for group in groups for position in range(start, stop)]

    def _where(self, row: StepRow, group: int, position: int) -> tuple[int, int, int]:
        return group, self.tables[row.slot, group][position // BLOCK_SIZE], position % BLOCK_SIZE
