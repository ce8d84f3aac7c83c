"""What a layer keeps per token, and which layers share block ids. Owns no storage and knows no codec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from octavo.errors import LoadError
from octavo.step_batch import StorageKind

LayerKind = Literal["full", "sliding", "chunked", "latent", "recurrent"]
MAX_DIM = 2**31 - 1


@dataclass(frozen=True)
class LayerSpec:
    """One layer's attention or state, as the model declares it in `kv_layout()`.

    `k_dim` and `v_dim` are elements per head and token; `scale` multiplies q·k. `window` counts the token itself: a
    sliding layer's token at position p sees `(p - window, p]`, a chunked layer's sees its own aligned chunk of
    `window` positions up to p. `softcap` bounds scores by `softcap * tanh(score / softcap)`. A latent layer has one
    KV head; its `k_dim` is latent plus rotary width and its values are the first `v_dim` elements of the key.

    Raises `LoadError` for a shape that no model can have.
    """

    kind: LayerKind
    num_q_heads: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sink_logits: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(LayerKind):
            raise LoadError(f"layer kind is {self.kind!r}; supported are {', '.join(get_args(LayerKind))}")
        for name in ("num_q_heads", "num_kv_heads", "k_dim", "v_dim"):
            _dimension(name, getattr(self, name))
        if self.num_q_heads % self.num_kv_heads:
            raise LoadError(
                f"{self.num_q_heads} query heads cannot share {self.num_kv_heads} KV heads evenly; "
                "the first must be a multiple of the second"
            )
        _positive("scale", self.scale)
        if self.softcap is not None:
            _positive("softcap", self.softcap)
        if self.kind in ("sliding", "chunked"):
            _dimension(f"window of a {self.kind} layer", self.window)
        elif self.window is not None:
            raise LoadError(f"a {self.kind} layer has window {self.window}; only sliding and chunked layers have one")
        if self.kind == "latent" and (self.num_kv_heads != 1 or self.v_dim > self.k_dim):
            raise LoadError(
                f"a latent layer has {self.num_kv_heads} KV heads, k_dim {self.k_dim} and v_dim {self.v_dim}; "
                "it must have one KV head and v_dim at most k_dim"
            )

    @property
    def bounded(self) -> bool:
        """True if what a sequence must hold does not grow with its length for ever."""
        return self.kind in ("sliding", "chunked", "recurrent")

    def first_visible(self, position: int) -> int:
        """First position that the token at `position` attends to; `position` itself if it reads no earlier token."""
        if self.kind == "recurrent":
            return position
        if self.window is None:
            return 0
        if self.kind == "chunked":
            return position - position % self.window
        return max(0, position - self.window + 1)


@dataclass(frozen=True)
class CacheGroup:
    """Layers with equal `LayerSpec`. One block id covers all of them. `layers` are model layer indices, ascending."""

    spec: LayerSpec
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if (
            not self.layers
            or self.layers[0] < 0
            or any(a >= b for a, b in zip(self.layers, self.layers[1:], strict=False))
        ):
            raise LoadError(f"a cache group has layers {self.layers}; they must be ascending, at least one, from 0")

    @property
    def bounded(self) -> bool:
        return self.spec.bounded

    def takes_blocks(self, storage: StorageKind) -> bool:
        """False where storage keeps this group per slot: state always, windows of dense sequences in a ring."""
        if self.spec.kind == "recurrent":
            return False
        return storage is StorageKind.PAGED or not self.bounded

    def max_blocks(
        self, storage: StorageKind, tokens: int, block_size: int, max_append_tokens: int | None, keep: int = 0
    ) -> int:
        """Most blocks that a sequence of up to `tokens` tokens ever holds here.

        A window is trimmed between appends, so it holds at most the `window - 1` tokens that the next one needs and
        the `max_append_tokens` of the append (None: no limit), at whatever alignment to blocks, after the `keep`
        tokens at the front.
        """
        if not self.takes_blocks(storage):
            return 0
        whole = -(-tokens // block_size)
        if self.spec.window is None or max_append_tokens is None:
            return whole
        span = self.spec.window - 1 + max_append_tokens
        # `span` positions starting anywhere in a block touch at most this many blocks.
        return min(whole, -(-keep // block_size) + (span + block_size - 2) // block_size + 1)

    def bytes_per_token(self, k_bytes_per_token: int, v_bytes_per_token: int) -> int:
        """Bytes that one token takes in all layers; the arguments are bytes per token of one layer's K and V."""
        return len(self.layers) * (k_bytes_per_token + v_bytes_per_token)

    def bytes_per_block(self, block_size: int, k_bytes_per_token: int, v_bytes_per_token: int) -> int:
        """Bytes that one block of `block_size` tokens takes in all layers."""
        return block_size * self.bytes_per_token(k_bytes_per_token, v_bytes_per_token)


def group_layers(layout: Sequence[LayerSpec]) -> tuple[CacheGroup, ...]:
    """Group layers (index = position in `layout`) by equal spec, in order of first appearance."""
    members: dict[LayerSpec, list[int]] = {}
    for layer, spec in enumerate(layout):
        members.setdefault(spec, []).append(layer)
    return tuple(CacheGroup(spec, tuple(layers)) for spec, layers in members.items())


def _dimension(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DIM:
        raise LoadError(f"{name} is {value!r}; it must be a whole number from 1 to {MAX_DIM}")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise LoadError(f"{name} is {value!r}; it must be a finite number above 0")
