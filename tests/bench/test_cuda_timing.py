"""The arithmetic of timings on a CUDA device, over a device that says what a test tells it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.bench import cuda_timing
from octavo.bench.percentiles import Spread


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for `torch.cuda`: `times` are the milliseconds of the replays to come, `replays` counts them."""
    found = SimpleNamespace(times=[], replays=0)

    class Event:
        def __init__(self, **settings: bool) -> None:
            assert settings == {"enable_timing": True}

        def record(self) -> None: ...

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Event) -> float:
            return float(found.times.pop(0))

    class Graph:
        def replay(self) -> None:
            found.replays += 1

    def context(*given: Any, **settings: Any) -> nullcontext[None]:
        return nullcontext()

    stream = SimpleNamespace(wait_stream=lambda other: None)
    cuda = SimpleNamespace(
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=context,
        graph=context,
        synchronize=lambda: None,
        CUDAGraph=Graph,
        Event=Event,
    )
    monkeypatch.setattr(cuda_timing, "torch", SimpleNamespace(cuda=cuda))
    return found


def test_a_time_is_of_one_call_in_microseconds_over_all_replays_but_the_warm_up(device: SimpleNamespace) -> None:
    device.times = [4.0, 2.0, 10.0]
    called: list[int] = []
    spread = cuda_timing.timed_graph([lambda: called.append(1), lambda: called.append(2)], replays=3)
    assert spread == Spread(2000.0, 1000.0, 5000.0)
    assert called == [1, 2] * 2, "once before the graph is recorded, once for it"
    assert device.replays == 3 + 3 and device.times == []
