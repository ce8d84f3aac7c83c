"""All layers of a model over a few tokens in one call (csrc/layer.c), so that Python is not the way between kernels.

Owns the tables that the call reads. A layer's values are those of its kernels one by one, to the bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from octavo.errors import CapacityError
from octavo.kernels.cpu import library
from octavo.kernels.cpu.attention import AttentionKernel, AttentionStep, StoredRows
from octavo.kernels.cpu.linear import PackedAffine
from octavo.kernels.rows import HeadNorms, Rotation

MOST_TOKENS = 64  # of a call: with more, coming from Python costs nothing beside the work, and the memory is not kept


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """A layer's attention; bias [rows of qkv] float32."""

    qkv: PackedAffine
    o: PackedAffine
    bias: Tensor | None
    norms: HeadNorms | None


@dataclass(frozen=True, slots=True)
class FeedForwardWeights:
    """A layer's gated feed-forward part; gate_up has gates before values."""

    gate_up: PackedAffine
    down: PackedAffine
    gelu: bool


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """A layer: x += [norm of] attention(norm(x)); x += [norm of] mlp(norm(x)), norms [H] float32 with one `eps`.

    `rotation` is the place of the layer's rotation among those of a call.
    """

    input_norm: Tensor
    attention: AttentionWeights
    attention_out_norm: Tensor | None
    mlp_norm: Tensor
    mlp: FeedForwardWeights
    mlp_out_norm: Tensor | None
    eps: float
    rotation: int = 0


class _Matrix(ctypes.Structure):
    _fields_ = (("parts", c_void_p), ("rows", c_int64), ("num_parts", c_int32))

    @classmethod
    def of(cls, weight: PackedAffine) -> _Matrix:
        return cls(weight.pointer, weight.num_rows, weight.num_parts)


class _Block(ctypes.Structure):
    _fields_ = (
        ("input_norm", c_void_p),
        ("bias", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("attention_out_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("mlp_out_norm", c_void_p),
        ("qkv", _Matrix),
        ("o", _Matrix),
        ("gate_up", _Matrix),
        ("down", _Matrix),
        ("eps", c_float),
        ("gelu", c_int32),
        ("rotation", c_int32),
    )


class _Store(ctypes.Structure):
    _fields_ = (
        ("blocks", c_void_p * 2),
        ("rings", c_void_p * 2),
        ("heads", c_void_p),
        ("sinks", c_void_p),
        ("group", c_int64),
    )


class _Group(ctypes.Structure):
    _fields_ = (("sequences", c_void_p), ("count", c_int64), ("in_rings", c_int64))


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Where one layer keeps keys and values of equal width, how its heads attend, and of which group it is."""

    blocks: tuple[StoredRows, StoredRows]
    rings: tuple[StoredRows, StoredRows] | None
    kernel: AttentionKernel
    sinks: Tensor | None
    group: int


class StoredLayers:
    """Where all layers keep theirs, in order. What is passed stays alive with this."""

    def __init__(self, layers: Sequence[LayerRows]) -> None:
        self._kept_alive = tuple(layers)
        self.count = len(layers)
        self._stores = (_Store * len(layers))()
        for store, layer in zip(self._stores, layers, strict=True):
            store.blocks[:] = [rows.pointer for rows in layer.blocks]
            if layer.rings is not None:
                store.rings[:] = [rows.pointer for rows in layer.rings]
            store.heads, store.sinks = layer.kernel.pointer, library.pointer(layer.sinks)
            store.group = layer.group
        self.pointer = ctypes.addressof(self._stores)


class AttentionCall:
    """How all layers attend in one step: the sequences of every group, and whether these lie in its rings."""

    def __init__(self, layers: StoredLayers, groups: Sequence[tuple[AttentionStep, bool]]) -> None:
        self._kept_alive = tuple(groups)
        self.layers = layers
        self._groups = (_Group * len(groups))(
            *[_Group(step.pointer, step.count, in_rings) for step, in_rings in groups]
        )
        self.pointer = ctypes.addressof(self._groups)


@runtime_checkable
class CallableCache(Protocol):
    """A cache that may have all layers attend within one call."""

    def attention_call(self) -> AttentionCall | None:
        """For the planned step; None where one of its groups has no kernel that stores and attends in one."""
        ...


class CompiledBlocks:
    """The layers of a model, and the norm [H] float32 after them."""

    def __init__(self, blocks: Sequence[BlockWeights], norm: Tensor, eps: float) -> None:
        functions = library.load().functions
        assert functions is not None
        self._function = functions.octavo_blocks
        self._kept_alive = tuple(blocks), norm
        self._norm, self._eps = norm, eps
        self._blocks = (_Block * len(blocks))(*[_block(block) for block in blocks])
        self._pointer = ctypes.addressof(self._blocks)

    def run(self, x: Tensor, rotations: Sequence[Rotation], call: AttentionCall) -> Tensor:
        """x [T, H] float32, contiguous, is overwritten -> what the norm gives in the end, [T, H] float32.

        Raises `CapacityError` if memory ran out.
        """
        assert call.layers.count == len(self._blocks)
        assert x.is_contiguous(), x.stride()
        turns = [
            library.Rotation(each.cos_table.data_ptr(), each.sin_table.data_ptr(), each.positions.data_ptr())
            for each in rotations
        ]
        structs = (library.Rotation * len(turns))(*turns)
        y = torch.empty_like(x)
        failed = self._function(
            self._pointer,
            call.layers.pointer,
            len(self._blocks),
            call.pointer,
            ctypes.addressof(structs),
            x.data_ptr(),
            x.shape[0],
            x.shape[1],
            self._norm.data_ptr(),
            self._eps,
            y.data_ptr(),
        )
        if failed:
            raise CapacityError(f"no memory is left for {x.shape[0]} tokens; lower --max-num-seqs or --max-context")
        return y


def _block(block: BlockWeights) -> _Block:
    attention, mlp = block.attention, block.mlp
    norms = attention.norms
    assert norms is None or norms.eps == block.eps
    assert mlp.gate_up.num_rows == 2 * mlp.down.num_columns
    return _Block(
        input_norm=block.input_norm.data_ptr(),
        bias=library.pointer(attention.bias),
        q_norm=None if norms is None else norms.q.data_ptr(),
        k_norm=None if norms is None else norms.k.data_ptr(),
        attention_out_norm=library.pointer(block.attention_out_norm),
        mlp_norm=block.mlp_norm.data_ptr(),
        mlp_out_norm=library.pointer(block.mlp_out_norm),
        qkv=_Matrix.of(attention.qkv),
        o=_Matrix.of(attention.o),
        gate_up=_Matrix.of(mlp.gate_up),
        down=_Matrix.of(mlp.down),
        eps=block.eps,
        gelu=int(mlp.gelu),
        rotation=block.rotation,
    )
