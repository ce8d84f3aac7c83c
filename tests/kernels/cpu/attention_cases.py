"""Stored keys and values for the attention kernel in every form of storage, with NaN wherever no sequence has a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.kernels import reference
from octavo.kernels.cpu.attention import AttentionKernel, AttentionStep, Placement, StoredRows


@dataclass(frozen=True)
class Heads:
    num_q: int
    num_kv: int
    k_dim: int
    v_dim: int
    window: int | None = None
    softcap: float | None = None

    @property
    def scale(self) -> float:
        return self.k_dim**-0.5

    def kernel(self) -> AttentionKernel:
        return AttentionKernel(self.num_q, self.num_kv, self.scale, self.window, self.softcap)

    def draw(self, length: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [length, H, D]."""
        generator = torch.Generator().manual_seed(seed)
        shapes = ((self.num_q, self.k_dim), (self.num_kv, self.k_dim), (self.num_kv, self.v_dim))
        q, k, v = (torch.randn(length, *shape, generator=generator) for shape in shapes)
        return q, k, v

    def define(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        start: int,
        dtype: torch.dtype = torch.float32,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """q at `start` over k and v from position 0, once rounded to `dtype`, in float64."""
        k, v = k.to(dtype).double(), v.to(dtype).double()
        return reference.attention(
            q.double(),
            k,
            v,
            q_start=start,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
            sink_logits=sinks,
        )


class Storage:
    """Rows for sequences of given lengths, laid out as `kind`: `dense`, `ring` (of `ring` rows), `blocks16`, …

    `head_major` has the rows of a head side by side instead of the heads of a row.
    """

    def __init__(
        self,
        heads: Heads,
        lengths: Sequence[int],
        kind: str = "dense",
        dtype: torch.dtype = torch.float32,
        *,
        ring: int = 0,
        head_major: bool = False,
        seed: int = 0,
    ) -> None:
        self._block_size = int(kind.removeprefix("blocks")) if kind.startswith("blocks") else 0
        self._ring = ring if kind == "ring" else 0
        self._blocks: list[np.ndarray | None] = [None] * len(lengths)
        self._bases = [0] * len(lengths)
        if self._block_size:
            counts = [-(-length // self._block_size) for length in lengths]
            ids = np.random.default_rng(seed).permutation(sum(counts) + 3).astype(np.int64)
            num_rows = len(ids) * self._block_size
            for i, count in enumerate(counts):
                self._blocks[i], ids = ids[:count].copy(), ids[count:]
        else:
            num_rows = 5
            for i, length in enumerate(lengths):
                self._bases[i] = num_rows
                num_rows += self._ring or length
        self.rows = []
        for dim in (heads.k_dim, heads.v_dim):
            shape = (heads.num_kv, num_rows, dim) if head_major else (num_rows, heads.num_kv, dim)
            data = torch.full(shape, float("nan"), dtype=dtype)
            self.rows.append(StoredRows(data.transpose(0, 1) if head_major else data))

    def place(self, q0: int, q1: int, start: int, sequence: int = 0) -> Placement:
        return Placement(
            q0, q1, start, self._blocks[sequence], self._block_size or 1, self._bases[sequence], self._ring
        )

    def store(self, kernel: AttentionKernel, k: Tensor, v: Tensor, start: int = 0, sequence: int = 0) -> None:
        step = AttentionStep([self.place(0, len(k), start, sequence)])
        kernel.store(k, self.rows[0], step)
        kernel.store(v, self.rows[1], step)

    def attend(
        self, kernel: AttentionKernel, q: Tensor, placements: list[Placement], sinks: Tensor | None = None
    ) -> Tensor:
        out = torch.full((*q.shape[:2], self.rows[1].data.shape[2]), float("nan"))
        kernel.run(q, self.rows[0], self.rows[1], AttentionStep(placements), out, sinks)
        return out


def attend(
    heads: Heads,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: int = 0,
    kind: str = "dense",
    dtype: torch.dtype = torch.float32,
    *,
    ring: int = 0,
    head_major: bool = False,
    sinks: Tensor | None = None,
) -> Tensor:
    """q at `start` over k and v, stored from position 0 as `kind` of `dtype`."""
    kernel = heads.kernel()
    storage = Storage(heads, [len(k)], kind, dtype, ring=ring, head_major=head_major)
    storage.store(kernel, k, v)
    return storage.attend(kernel, q, [storage.place(0, len(q), start)], sinks)


def store_steps(
    heads: Heads, kernel: AttentionKernel, storage: Storage, steps: Sequence[tuple[int, int]]
) -> tuple[list[Tensor], list[Placement]]:
    """Sequences of which `(start, count)` are stored and computed: queries of each, and where together they stand."""
    queries, placements, q0 = [], [], 0
    for i, (start, count) in enumerate(steps):
        q, k, v = heads.draw(start + count, seed=i)
        storage.store(kernel, k, v, sequence=i)
        placements.append(storage.place(q0, q0 + count, start, i))
        queries.append(q[start:])
        q0 += count
    return queries, placements


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected).abs().max() / expected.abs().max())


def assert_is_the_definition(
    heads: Heads, start: int, num_tokens: int, *, sinks: Tensor | None = None, **storage: object
) -> None:
    q, k, v = heads.draw(start + num_tokens)
    got = attend(heads, q[start:], k, v, start, sinks=sinks, **storage)
    expected = heads.define(q[start:], k, v, start, storage.get("dtype", torch.float32), sinks)
    # A capped score is a difference of numbers of the cap's size, off by their last bit.
    tolerance = 2e-6 + 1e-7 * (heads.softcap or 0.0)
    assert relative_error(got, expected) < tolerance
    assert relative_error(got * 1.01, expected) > tolerance
