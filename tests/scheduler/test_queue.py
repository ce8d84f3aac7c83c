"""The line: priorities, age, and who stands where after having left."""

from __future__ import annotations

import random

from scheduler_simulation import make_state

from octavo.scheduler.queue import WaitingQueue, WaitingRequest
from octavo.step_batch import StorageKind


def request(number: int, priority: int = 0, waited: int = 0) -> WaitingRequest:
    state = make_state(f"r{number}", 5, 5, priority)
    return WaitingRequest(state, StorageKind.PAGED, 5, (1,), (0,), arrival=number, waited=waited)


def line(queue: WaitingQueue) -> list[str]:
    return [waiting.request_id for waiting in queue]


def test_lower_priorities_come_first_and_equal_ones_in_the_order_of_arrival() -> None:
    queue = WaitingQueue()
    for number, priority in enumerate([0, 5, -1, 0, 5, -1]):
        queue.push(request(number, priority))
    assert line(queue) == ["r2", "r5", "r0", "r3", "r1", "r4"]
    assert queue.by_priority() == {0: 2, 5: 2, -1: 2}


def test_a_request_rises_one_level_for_each_span_of_ticks_and_then_precedes_later_ones_of_that_level() -> None:
    queue = WaitingQueue(ageing_ticks=10)
    queue.push(request(0, priority=1))
    for _ in range(5):
        queue.age()
    queue.push(request(1))
    queue.push(request(2))
    for _ in range(4):
        queue.age()
        assert line(queue) == ["r1", "r2", "r0"]
    queue.age()
    assert line(queue) == ["r0", "r1", "r2"]


def test_nobody_waits_for_ever_behind_an_endless_stream_of_higher_priority() -> None:
    queue = WaitingQueue(ageing_ticks=10)
    queue.push(request(0, priority=7))
    for number in range(1, 200):
        queue.push(request(number))
        first = next(iter(queue)).request_id
        queue.pop(first)
        queue.age()
        if first == "r0":
            break
    assert number == 7 * 10 + 1


def test_time_out_of_the_line_does_not_count_and_time_in_it_adds_up() -> None:
    queue = WaitingQueue(ageing_ticks=10)
    queue.push(request(0, priority=1))
    for _ in range(6):
        queue.age()
    popped = queue.pop("r0")
    assert (popped.waited, queue.level(popped)) == (6, 1)
    for _ in range(50):
        queue.age()
    queue.push(popped)
    for _ in range(4):
        assert queue.level(popped) == 1
        queue.age()
    again = queue.pop("r0")
    assert (again.waited, queue.level(again)) == (10, 0)


def test_who_returns_stands_before_all_that_came_later() -> None:
    queue = WaitingQueue()
    for number in range(4):
        queue.push(request(number))
    first = queue.pop("r0")
    queue.push(request(4))
    queue.push(first)
    assert line(queue) == ["r0", "r1", "r2", "r3", "r4"]


def test_the_line_equals_a_sorted_list_whatever_comes_and_goes() -> None:
    rng = random.Random(5)
    queue, here, now = WaitingQueue(ageing_ticks=7), {}, 0  # here: id -> (request, tick it would have joined)
    for number in range(3_000):
        chance = rng.random()
        if chance < 0.4:
            waiting = request(number, rng.randint(-2, 3), rng.randint(0, 20))
            queue.push(waiting)
            here[waiting.request_id] = waiting, now - waiting.waited
        elif chance < 0.6 and here:
            name = rng.choice(list(here))
            waiting, since = here.pop(name)
            assert queue.pop(name).waited == now - since
            assert name not in queue
        else:
            queue.age()
            now += 1

        expected = [(w.priority - (now - since) // 7, w.arrival, name) for name, (w, since) in here.items()]
        assert len(queue) == len(here)
        assert line(queue) == [name for *_, name in sorted(expected)]
