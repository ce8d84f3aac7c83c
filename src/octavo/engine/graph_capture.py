"""Recording device work once, and running it again from the record. Knows nothing of what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch


class Recorder(Protocol):
    """A way of recording."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """What runs `work` again: the same launches with the same arguments. Does not run it, nor waits for anything.

        `work` must have run before, so that nothing is compiled while it is recorded. Raises `RuntimeError` if it does
        what cannot be recorded.
        """
        ...


class CudaGraphs:
    """CUDA graphs that share one pool of memory: none runs while another does, and what one leaves there is read
    before the next runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            # Other threads may use the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                _give_up(graph)
                raise
            graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph.replay


def _give_up(graph: torch.cuda.CUDAGraph) -> None:
    with suppress(RuntimeError):  # what broke it off is on its way already, and says more
        graph.capture_end()
