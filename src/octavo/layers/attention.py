"""Multi-head attention around the cache's `attend`: projections, optional q/k norms, rotary embedding."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.rows import rotate_heads
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotation


class AttentionCache(Protocol):
    """What attention needs of a cache."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class Attention:
    """Projects, rotates, hands q, k and v to the cache, and projects back."""

    def __init__(
        self,
        layer: int,
        spec: LayerSpec,
        qkv_proj: Linear,
        o_proj: Linear,
        *,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        self._layer = layer
        self._heads = (spec.num_q_heads, spec.num_kv_heads)
        self._head_dim = spec.k_dim
        self._qkv_proj = qkv_proj
        self._o_proj = o_proj
        self._norms = None if q_norm is None or k_norm is None else (q_norm.weight, k_norm.weight)
        self._eps = 0.0 if q_norm is None else q_norm.eps

    def __call__(self, x: Tensor, rotation: Rotation, cache: AttentionCache) -> Tensor:
        """x [T, H] float32 -> [T, H] in float32 or the compute dtype. Norms, rotation and attention are float32."""
        num_tokens = x.shape[0]
        qkv = self._qkv_proj(x).float().view(num_tokens, -1, self._head_dim)
        q, k, v = rotate_heads(qkv, *self._heads, rotation.cos, rotation.sin, self._norms, self._eps)
        return self._o_proj(cache.attend(self._layer, q, k, v).view(num_tokens, -1))
