"""Times of our decode kernels beside those of peers, in one process on one CUDA device. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import torch
from torch import Tensor

from octavo.bench.cuda_timing import read_ceiling, timed_graph
from octavo.bench.decode_setup import Call, DecodeSetup
from octavo.bench.kernel_loads import DecodeLoad, HeadShape
from octavo.bench.kernel_peers import dense_sdpa, flashinfer_paged, flashinfer_version
from octavo.bench.outcome import Outcome
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp

_LARGEST_DIFFERENCE = 5e-3  # of two float16 results of the same load, relative: an error, not rounding


@dataclass(frozen=True, slots=True)
class KernelCell:
    """One head shape under one load: microseconds over replays of `ours` (by K/V dtype, `exact` too) and of `peers`.

    `kv_bytes` are those of float16. A peer that refuses the shape is in `refused` with the kind of its error.
    """

    shape: HeadShape
    load: DecodeLoad
    kv_bytes: int
    ours: dict[str, Spread]
    peers: dict[str, Spread]
    refused: dict[str, str]

    @property
    def best_peer(self) -> float | None:
        return min((each.median for each in self.peers.values()), default=None)


@dataclass
class KernelRun:
    """What is measured, and the cells so far."""

    shapes: Sequence[HeadShape]
    loads: Sequence[DecodeLoad]
    kv_dtypes: Sequence[str]
    exact: bool
    cells: list[KernelCell] = field(default_factory=list)
    ceiling_gbps: float = 0.0
    environment: dict[str, object] = field(default_factory=environment_stamp)
    outcome: Outcome = field(default_factory=Outcome)

    def records(self) -> list[dict[str, object]]:
        """One flat record for each cell."""
        return [
            {
                "shape": cell.shape.name,
                "load": cell.load.name,
                "kv_bytes": cell.kv_bytes,
                "ours_us": _medians(cell.ours),
                "peers_us": _medians(cell.peers),
                "spread_us": {
                    name: [round(each.low, 2), round(each.high, 2)] for name, each in (cell.ours | cell.peers).items()
                },
                "refused": cell.refused,
                "read_ceiling_gbps": round(self.ceiling_gbps, 1),
                "commit": self.environment["commit"],
            }
            for cell in self.cells
        ]

    def as_object(self) -> dict[str, object]:
        return {
            **self.outcome.as_object(),
            "environment": self.environment,
            "read_ceiling_gbps": self.ceiling_gbps,
            "cells": self.records(),
        }


def _medians(spreads: Mapping[str, Spread]) -> dict[str, float]:
    return {name: round(each.median, 2) for name, each in spreads.items()}


def bench_kernels(run: KernelRun, progress: Callable[[KernelCell], None]) -> None:
    """Measure every cell of `run`. Raises what a failing kernel of ours raises; a peer's refusal is noted."""
    torch.manual_seed(0)
    run.environment |= {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "flashinfer": flashinfer_version(),
    }
    with run.outcome as outcome:
        run.ceiling_gbps = read_ceiling()
        for shape, load in product(run.shapes, run.loads):
            outcome.where = f"{shape.name}, {load.name}"
            cell = _measure(run, shape, load)
            run.cells.append(cell)
            progress(cell)
            torch.cuda.empty_cache()


def _measure(run: KernelRun, shape: HeadShape, load: DecodeLoad) -> KernelCell:
    setup = DecodeSetup.make(shape, load)
    cell = KernelCell(shape, load, setup.kv_bytes, {}, {}, {})
    expected: Tensor | None = None
    for name, make in _peers(setup).items():
        try:
            calls = make()
            result = calls[0]()
        except (RuntimeError, ValueError, AssertionError) as error:  # what FlashInfer raises for a shape it lacks
            cell.refused[name] = type(error).__name__
            continue
        assert isinstance(result, Tensor)
        expected = result.reshape(setup.q.shape).float()
        cell.peers[name] = timed_graph(calls)
    if "f16" in run.kv_dtypes:
        for name, exact in (("f16", False), ("f16 exact", True)):
            if exact and not run.exact:
                continue
            calls, out = setup.exact() if exact else setup.fused()
            calls[0]()
            if expected is not None:
                difference = float((out.float() - expected).norm() / expected.norm())
                assert difference < _LARGEST_DIFFERENCE, f"{shape.name} {load.name}: {name} is off by {difference:.1e}"
            cell.ours[name] = timed_graph(calls)
    del setup
    for codec in run.kv_dtypes:
        if codec != "f16":
            torch.cuda.empty_cache()
            calls, _ = DecodeSetup.make(shape, load, codecs=(codec, codec)).fused()
            cell.ours[codec] = timed_graph(calls)
    return cell


def _peers(setup: DecodeSetup) -> dict[str, Callable[[], list[Call]]]:
    peers: dict[str, Callable[[], list[Call]]] = {}
    if flashinfer_version() is not None:
        peers["flashinfer tensor cores"] = partial(flashinfer_paged, setup, tensor_cores=True)
        peers["flashinfer cuda cores"] = partial(flashinfer_paged, setup, tensor_cores=False)
    if setup.load.even:
        peers["dense sdpa"] = partial(dense_sdpa, setup)
    return peers
