"""Steps of a scheduler as tests take and read them."""

from __future__ import annotations

from scheduler_simulation import StorageSimulation, make_pool

from octavo.cache.cache_pool import CachePool
from octavo.scheduler.scheduled_step import ScheduledStep
from octavo.scheduler.scheduler import Scheduler
from octavo.step_batch import StorageKind

DENSE = StorageKind.DENSE
PAGED = StorageKind.PAGED


def make_scheduler(pool: CachePool | None = None, budget: int = 64, chunk: int = 32) -> Scheduler:
    return Scheduler(pool or make_pool(), budget, chunk, PAGED)


def scheduled(scheduler: Scheduler) -> ScheduledStep:
    step = scheduler.schedule()
    assert step is not None
    return step


def shape(step: ScheduledStep) -> list[tuple[str, int, int, bool]]:
    rows = zip(step.states, step.batch.rows, strict=True)
    return [(state.request.request_id, row.start, row.stop, row.sample) for state, row in rows]


def answer(step: ScheduledStep) -> list[int | None]:
    return [7 if row.sample else None for row in step.batch.rows]


def complete(scheduler: Scheduler, storage: StorageSimulation, step: ScheduledStep) -> list[int | None]:
    sampled = storage.run(step)
    scheduler.complete(step, sampled, storage.captured(step))
    return sampled


def run_all(scheduler: Scheduler, storage: StorageSimulation) -> list[tuple[str, int, int, bool]]:
    """Every row of every step until nobody is left."""
    shapes = []
    while scheduler.has_work:
        step = scheduled(scheduler)
        shapes += shape(step)
        scheduler.complete(step, storage.run(step), storage.captured(step))
        for state in step.states:
            if state.num_tokens == state.max_total_tokens:
                scheduler.finish(state.request.request_id, "length")
    return shapes
