"""Multi-head attention around the cache's `attend_qkv`: the projections, and what is done to heads between them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.cpu.blocks import AttentionWeights
from octavo.kernels.rows import HeadNorms, HeadWeights, Rotation
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.layers.residual import Residual


class AttentionCache(Protocol):
    """What attention needs of a cache."""

    def attend_qkv(
        self, layer: int, qkv: Tensor, rotation: Rotation, weights: HeadWeights, dtype: torch.dtype
    ) -> Tensor:
        """qkv [T, (Hq + 2 Hkv) · D] as projected, without a bias: see `HeadWeights`; rotate, store k and v, attend.

        It may be in parts [S, T, (Hq + 2 Hkv) · D], which are added up first.

        Returns [T, Hq, D], computed in float32 and rounded to `dtype`.
        """
        ...


class Attention:
    """Projects, has the cache rotate, store and attend, and projects back. `dtype` is what `o_proj` would round to."""

    def __init__(
        self,
        layer: int,
        spec: LayerSpec,
        qkv_proj: Linear,
        o_proj: Linear,
        *,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        assert spec.k_dim == spec.v_dim, f"one projection of heads of {spec.k_dim} and {spec.v_dim} elements"
        self._layer = layer
        self._dtype = dtype
        self._qkv_proj = qkv_proj
        self._o_proj = o_proj
        norms = None
        if q_norm is not None and k_norm is not None:
            norms = HeadNorms(q_norm.weight, k_norm.weight, q_norm.eps)
        self._weights = HeadWeights(norms, qkv_proj.bias)

    @property
    def compiled(self) -> AttentionWeights | None:
        """The weights, if all are the compiled kernels' and nothing is rounded between them."""
        qkv, o = self._qkv_proj.affine_product, self._o_proj.affine
        if qkv is None or o is None or self._dtype != torch.float32:
            return None
        return AttentionWeights(qkv, o, self._weights.bias, self._weights.norms)

    def __call__(self, x: Tensor, rotation: Rotation, cache: AttentionCache, rows: Tensor | None = None) -> Tensor:
        """x [T, H] -> [T, H], or [R, H] of `rows` [R], in float32 or the compute dtype. Norms, rotation and attention
        are float32.
        """
        return self._o_proj(self._attend(self._qkv_proj.product(x), rotation, cache, rows))

    def add_to(
        self,
        stream: Residual,
        norm: RMSNorm,
        next_norm: RMSNorm,
        rotation: Rotation,
        cache: AttentionCache,
        rows: Tensor | None = None,
    ) -> None:
        """Add `self(norm(x))` to the stream's x, seen through `next_norm` next; of that `rows` stay, if given."""
        qkv = stream.product(norm, self._qkv_proj)
        attended = self._attend(qkv, rotation, cache, rows)
        if rows is not None:
            stream.keep(rows)
        stream.add_product(self._o_proj, attended, next_norm)

    def _attend(self, qkv: Tensor, rotation: Rotation, cache: AttentionCache, rows: Tensor | None) -> Tensor:
        attended = cache.attend_qkv(self._layer, qkv, rotation, self._weights, self._dtype)
        attended = attended.view(qkv.shape[-2], attended.shape[-2] * attended.shape[-1])
        return attended if rows is None else attended[rows]
