"""Attention straight from stored rows, by csrc/attention.c: no gathered copy, whatever storage the rows lie in."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.errors import CapacityError
from octavo.kernels.cpu import library
from octavo.kernels.rows import HeadNorms

Encoding = Literal["q8_0", "q4_0", "turbo4"]
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_ENCODINGS: dict[Encoding, int] = {"q8_0": 3, "q4_0": 4, "turbo4": 5}
_MOST_QUERIES_PER_HEAD = 32
_TILE_ROWS, _PART, _BATCH, _MOST_PARTIALS = 64, 256, 64, 4 << 20  # as csrc/part.h and csrc/attention.c have them


class Placement(NamedTuple):
    """Packed tokens `[q0, q1)` of one sequence, the first at position `start`, and where its positions are stored.

    Position p lies in row `blocks[p // block_size] * block_size + p % block_size`; without `blocks` (int64) in
    `base + p % ring`, or `base + p` where `ring` is 0. Where a context shift has dropped tokens, positions count what
    is left: those from `keep` on lie `skip` further in the blocks.
    """

    q0: int
    q1: int
    start: int
    blocks: NDArray[np.int64] | None = None
    block_size: int = 1
    base: int = 0
    ring: int = 0
    keep: int = 0
    skip: int = 0


class StoredRows:
    """Rows [num_rows, H, width] (any strides over rows and heads) as the kernels see them.

    A floating dtype is what it is; its width is the head's D. Otherwise `encoding` names how csrc/codecs.h encodes D
    elements, `scales` [num_rows, H, groups] are float16, and for `turbo4` `scaled` elements share a scale and `tables`
    are its signs, levels and bounds.
    """

    def __init__(
        self,
        data: Tensor,
        *,
        encoding: Encoding | None = None,
        dim: int | None = None,
        scales: Tensor | None = None,
        scaled: int = 0,
        tables: Tensor | None = None,
    ) -> None:
        assert data.stride(2) == 1
        self.data = data
        self._kept_alive = scales, tables
        dtype = _DTYPES[data.dtype] if encoding is None else _ENCODINGS[encoding]
        self.struct = library.Rows(data.data_ptr(), data.stride(0), data.stride(1), dtype, dim or data.shape[2])
        if scales is not None:
            assert scales.stride(2) == 1
            self.struct.scales = scales.data_ptr()
            self.struct.scale_row_stride, self.struct.scale_head_stride = scales.stride(0), scales.stride(1)
        if tables is not None:
            self.struct.scaled, self.struct.tables = scaled, tables.data_ptr()
        self.pointer = ctypes.addressof(self.struct)


class AttentionStep:
    """Sequences of one step, for every layer of a group."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self._kept_alive = placements
        # `octavo_sequence`s: all their fields are 64 bits wide.
        self._structs = np.array(
            [
                (q0, q1 - q0, start, 0 if blocks is None else blocks.ctypes.data, *others)
                for q0, q1, start, blocks, *others in placements
            ],
            dtype=np.int64,
        )
        self.pointer = self._structs.ctypes.data
        self.count = len(placements)


class AttentionKernel:
    """Causal attention with one shape of heads."""

    def __init__(
        self, num_q_heads: int, num_kv_heads: int, scale: float, window: int | None, softcap: float | None
    ) -> None:
        functions = library.load().functions
        assert functions is not None
        self._functions = functions
        self._num_kv_heads = num_kv_heads
        self._heads = library.Heads(num_q_heads, num_kv_heads, window or 0, scale, softcap or 0.0)
        self.pointer = ctypes.addressof(self._heads)

    @staticmethod
    def refusal(num_q_heads: int, num_kv_heads: int, k_dim: int, v_dim: int) -> str | None:
        """Why the kernel cannot serve such heads on this machine; None if it can."""
        if library.load().functions is None:
            return library.load().reason
        if k_dim % 16 or v_dim % 16:
            return f"heads of {k_dim} and {v_dim} elements, not multiples of 16"
        if num_q_heads // num_kv_heads > _MOST_QUERIES_PER_HEAD:
            return f"{num_q_heads // num_kv_heads} query heads share a K/V head, more than {_MOST_QUERIES_PER_HEAD}"
        return None

    def store(self, values: Tensor, rows: StoredRows, step: AttentionStep) -> None:
        """values [T, Hkv, D] float32 (any stride over tokens) into the rows of their positions."""
        self._functions.octavo_store(
            values.data_ptr(), values.stride(0), self._num_kv_heads, rows.pointer, step.pointer, step.count
        )

    def run(
        self,
        q: Tensor,
        k: StoredRows,
        v: StoredRows,
        step: AttentionStep,
        out: Tensor,
        sinks: Tensor | None = None,
    ) -> None:
        """q [T, Hq, Dk] float32 (any stride over tokens) over stored rows, the step's own included.

        The tokens of `step` go to out [T, Hq, Dv] float32, contiguous. `sinks` [Hq] float32, contiguous, are learned
        logits that join each softmax and add no value.
        """
        failed = self._functions.octavo_attend(
            q.data_ptr(),
            q.stride(0),
            k.pointer,
            v.pointer,
            step.pointer,
            step.count,
            self.pointer,
            library.pointer(sinks),
            out.data_ptr(),
        )
        _check(failed)

    def run_qkv(
        self,
        qkv: Tensor,
        rotation: tuple[Tensor, Tensor],
        norms: HeadNorms | None,
        k: StoredRows,
        v: StoredRows,
        step: AttentionStep,
        out: Tensor,
        sinks: Tensor | None = None,
    ) -> None:
        """Normalise and rotate heads, store keys and values, and `run`, in one call, for all tokens of the step.

        qkv [T, Hq + 2 Hkv, D] float32, contiguous, is overwritten. `rotation` is cos and sin [T, D] float32, sin with
        the sign of its half. Otherwise as `run`.
        """
        turn = library.Rotation(rotation[0].data_ptr(), rotation[1].data_ptr())
        failed = self._functions.octavo_attend_qkv(
            qkv.data_ptr(),
            qkv.shape[0],
            qkv.shape[2],
            ctypes.addressof(turn),
            None if norms is None else norms.q.data_ptr(),
            None if norms is None else norms.k.data_ptr(),
            0.0 if norms is None else norms.eps,
            k.pointer,
            v.pointer,
            step.pointer,
            step.count,
            self.pointer,
            library.pointer(sinks),
            out.data_ptr(),
        )
        _check(failed)


def workspace_bytes(k_dim: int, v_dim: int, reach: int, threads: int) -> int:
    """Most that the kernel keeps between calls, where a row sees up to `reach` positions: every thread's tile of query
    rows with what belongs to it, and what parts give that threads share, fewer than four tiles each.
    """
    partial = _TILE_ROWS * (2 + v_dim)
    tile = _TILE_ROWS * (k_dim + _PART) + _BATCH * max(k_dim, v_dim) + 16 * k_dim + 2 * _PART + 2 * partial
    tile += 4 * _TILE_ROWS  # what rows see
    parts = -(-reach // _PART) + 1
    shared = min(4 * threads * parts * partial, _MOST_PARTIALS) if threads > 1 and reach > 1 else 0
    return 4 * (threads * tile + shared)


def _check(failed: int) -> None:
    if failed:
        raise CapacityError("no memory is left for attention's workspace; lower --threads or --max-context")
