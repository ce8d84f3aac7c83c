"""Float32 workspace that one sequence's keys and values are decoded into before they are attended to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.chunked_attention import AttentionSpan


@dataclass(frozen=True, slots=True)
class SpanViews:
    """Views for one row of a step: `keys` and `values` [Hkv, span.length, D]; real rows go to the `_target`s.

    `padding` are the parts of `values` before and after the real rows, which must be zeroed before use.
    """

    keys: Tensor
    values: Tensor
    key_target: Tensor
    value_target: Tensor
    padding: tuple[Tensor, ...]

    def zero_padding(self) -> None:
        for part in self.padding:
            part.zero_()


class Scratch:
    """One group's workspace. Grows to the longest span seen; rows and layers take turns."""

    def __init__(self, spec: LayerSpec, device: torch.device) -> None:
        self._spec = spec
        self._device = device
        self._length = 0
        self._keys = self._values = torch.empty(0, device=device)

    def views(self, span: AttentionSpan, read_start: int) -> SpanViews:
        """Views for a span whose real rows are positions `[read_start, span.hi)`."""
        spec, length = self._spec, span.length
        if length > self._length:
            self._length = length
            self._keys = torch.empty(spec.num_kv_heads * length * spec.k_dim, device=self._device)
            self._values = torch.empty(spec.num_kv_heads * length * spec.v_dim, device=self._device)
        keys = self._keys[: spec.num_kv_heads * length * spec.k_dim].view(spec.num_kv_heads, length, spec.k_dim)
        values = self._values[: spec.num_kv_heads * length * spec.v_dim].view(spec.num_kv_heads, length, spec.v_dim)
        first, last = read_start - span.first_key, span.hi - span.first_key
        padding = tuple(part for part in (values[:, :first], values[:, last:]) if part.shape[1])
        return SpanViews(keys, values, keys[:, first:last], values[:, first:last], padding)
