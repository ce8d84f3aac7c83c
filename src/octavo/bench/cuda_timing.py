"""Times of work on a CUDA device, and how fast its memory can be read at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from octavo.bench.percentiles import Spread


def timed_graph(calls: Sequence[Callable[[], object]], replays: int = 20) -> Spread:
    """Microseconds of one call, over replays of one CUDA graph of all calls, after three warm-ups.

    Give every call other data, more than the caches hold in all, and so many that a replay's own cost is divided away.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return Spread.of(times)


def read_ceiling(num_bytes: int = 4 << 30) -> float:
    """GB/s at which a reduction reads `num_bytes` of device memory."""
    data = torch.empty(num_bytes, dtype=torch.uint8, device="cuda").random_(0, 255).view(torch.int32)
    return num_bytes / timed_graph([lambda: torch.sum(data, dtype=torch.int32)], 10).median / 1e3
