"""The memory of one layer's K and V: blocks for every slot, and a ring per slot where the layer is bounded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.cpu.attention import StoredRows
from octavo.storage.codecs import Codec, RowMemory, RowStore

if TYPE_CHECKING:
    from octavo.kernels.triton.paged_decode import StoredRows as PagedRows


@dataclass(frozen=True, slots=True)
class KVRows:
    """K and V of the same tokens, encoded; written and read together."""

    k: RowStore
    v: RowStore

    @classmethod
    def allocate(
        cls,
        spec: LayerSpec,
        num_rows: int,
        k_codec: Codec,
        v_codec: Codec,
        device: torch.device,
        memory: tuple[RowMemory, RowMemory] = (torch.empty, torch.empty),
    ) -> KVRows:
        """In the `memory` of K and of V."""
        return cls(
            k=k_codec.allocate(num_rows, spec.num_kv_heads, spec.k_dim, device, memory[0]),
            v=v_codec.allocate(num_rows, spec.num_kv_heads, spec.v_dim, device, memory[1]),
        )

    def write(self, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """k [T, Hkv, Dk] and v [T, Hkv, Dv] into rows [T]."""
        self.k.write(rows, k)
        self.v.write(rows, v)

    def write_run(self, start: int, k: Tensor, v: Tensor) -> None:
        """k and v of T tokens into rows `[start, start + T)`."""
        self.k.write_run(start, k)
        self.v.write_run(start, v)


@dataclass(frozen=True)
class LayerStore:
    """`blocks` holds `num_blocks * block_size` rows; `ring` holds `max_seqs * window` rows, or None.

    Block b begins with row `b * stride * block_size` of `blocks`: where the stride is above 1, blocks of other layers
    lie in between, which are no rows of this one.

    `sinks` [Hq] float32 are the layer's learned sink logits, or None.
    """

    blocks: KVRows
    ring: KVRows | None
    codecs: tuple[Codec, Codec]
    sinks: Tensor | None = None
    stride: int = 1

    @cached_property
    def kernel_blocks(self) -> tuple[StoredRows, StoredRows]:
        """K and V of the blocks for the compiled kernels. Only where they can read them."""
        return _for_kernels(self.blocks)

    @cached_property
    def kernel_ring(self) -> tuple[StoredRows, StoredRows]:
        """K and V of the ring for the compiled kernels."""
        assert self.ring is not None
        return _for_kernels(self.ring)

    @cached_property
    def paged_blocks(self) -> tuple[PagedRows, PagedRows]:
        """K and V of the blocks for the kernels of a GPU. Only where these serve."""
        from octavo.kernels.triton.paged_decode import StoredRows as PagedRows

        return PagedRows.of(self.blocks.k.planes()), PagedRows.of(self.blocks.v.planes())


def _for_kernels(rows: KVRows) -> tuple[StoredRows, StoredRows]:
    k, v = rows.k.for_kernels(), rows.v.for_kernels()
    assert k is not None
    assert v is not None
    return k, v
