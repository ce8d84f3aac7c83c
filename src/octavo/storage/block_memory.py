"""The memory of a group's layers on a CPU: a block of all layers lies in one piece, in large pages where there are any.

A step reads few tokens of every layer. Layer by layer they would lie in a page of their own each, or in several, and
with all weights read in between the processor looks every one up anew, which takes longer than reading it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor

from octavo.cache.spec import CacheGroup
from octavo.errors import CapacityError
from octavo.kernels.cpu.arena import Arena
from octavo.storage.codecs import Codec, RowMemory
from octavo.storage.layer_store import KVRows, LayerStore


def allocate_layers(
    group: CacheGroup,
    num_blocks: int,
    block_size: int,
    codecs: tuple[Codec, Codec],
    device: torch.device,
    *,
    ring_rows: int,
    has_runs: bool,
) -> list[LayerStore]:
    """The stores of the group's layers, in order.

    With `has_runs` sequences may be dense: then a layer's rows lie one after another, as on a GPU, and it has a ring of
    `ring_rows` rows, unless that is 0. Raises `CapacityError` if there is no memory.
    """
    rows, spec = num_blocks * block_size, group.spec
    if has_runs or device.type != "cpu":
        return [
            LayerStore(
                KVRows.allocate(spec, rows, *codecs, device),
                KVRows.allocate(spec, ring_rows, *codecs, device) if ring_rows else None,
                codecs,
            )
            for _ in group.layers
        ]
    alike = codecs[0] is codecs[1] and spec.k_dim == spec.v_dim
    memory = BlockMemory(len(group.layers) * (2 if alike else 1), num_blocks, block_size)
    stores = []
    for i in range(len(group.layers)):
        # K and V that look alike lie side by side.
        sides = (memory.at(2 * i), memory.at(2 * i + 1)) if alike else (memory.at(i), memory.at(i, "v"))
        blocks = KVRows.allocate(spec, rows, *codecs, device, sides)
        stores.append(LayerStore(blocks, None, codecs, stride=memory.stride))
    return stores


class BlockMemory:
    """Planes of rows in which a block's rows lie beside those of the same block at other places.

        block            0                                     1
        place    0 | 1 | … | stride - 1        0 | 1 | … | stride - 1        …

    So the rows of a place, as one tensor, have those of the other places between one block and the next.
    """

    def __init__(self, stride: int, num_blocks: int, block_size: int) -> None:
        self.stride = stride
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def at(self, place: int, kind: str = "") -> RowMemory:
        """Memory for one store's planes, at `place` of the stride. Stores of one `kind` have the same planes."""
        numbers: Iterator[int] = count()

        def take(num_rows: int, num_heads: int, width: int, /, *, dtype: torch.dtype, device: torch.device) -> Tensor:
            assert device.type == "cpu", device
            assert num_rows == self._num_blocks * self._block_size, (num_rows, self._num_blocks, self._block_size)
            key = (kind, next(numbers))
            if key not in self._buffers:
                self._buffers[key] = _large_pages((num_rows * self.stride, num_heads, width), dtype)
            return self._buffers[key][place * self._block_size :]

        return take


def _large_pages(shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """Never written, and takes no memory before it is."""
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        return Arena().take(num_bytes).tensor().view(dtype).view(shape)
    except OSError as error:
        raise CapacityError(f"no memory is left for {num_bytes} bytes of K/V; lower --kv-budget") from error
