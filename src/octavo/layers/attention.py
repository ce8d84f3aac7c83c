"""Multi-head attention around the cache's `attend`: projections, optional q/k norms, rotary embedding."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotation
from octavo.step_batch import Phase


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
        self._q_norm = q_norm
        self._k_norm = k_norm

    def __call__(self, x: Tensor, rotation: Rotation, cache: AttentionCache, phase: Phase) -> Tensor:
        """x [T, H] in the compute dtype -> [T, H]. Norms, rotation and attention are float32."""
        num_tokens = x.shape[0]
        qkv = self._qkv_proj(x, phase).float().view(num_tokens, -1, self._head_dim)
        num_q, num_kv = self._heads
        if self._q_norm is not None and self._k_norm is not None:
            q = rotation.apply(self._q_norm(qkv[:, :num_q]))
            k = rotation.apply(self._k_norm(qkv[:, num_q : num_q + num_kv]))
        else:
            q, k = rotation.apply(qkv[:, : num_q + num_kv]).split((num_q, num_kv), dim=1)
        out = cache.attend(self._layer, q, k, qkv[:, num_q + num_kv :])
        return self._o_proj(out.reshape(num_tokens, -1).to(x.dtype), phase)
