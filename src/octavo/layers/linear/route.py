"""What a way of multiplying by a weight must offer and declare, and which one a tensor gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo.config import WeightsChoice
from octavo.layers.quant_tensor import QuantTensor


@dataclass(frozen=True, slots=True)
class RouteProperties:
    """What a route promises. `row_invariant`: a row's result is bitwise the same at every row count.

    `weight_error` bounds |packed - w| relative to the largest |w| of its scale group (0: exact). `bytes_per_weight` is
    memory per element, for the ledger. `serves_embedding`: the packed table can be looked up, so that a tied embedding
    needs no copy.
    """

    name: str
    row_invariant: bool
    weight_error: float
    bytes_per_weight: float
    serves_embedding: bool = False


class PackedWeight(Protocol):
    """A weight [N, K] (the concatenation of one or more shards) in the form a kernel reads."""

    @property
    def num_bytes(self) -> int: ...

    def apply(self, x: Tensor) -> Tensor:
        """x [T, K] in the compute dtype -> [T, N] in the compute dtype."""
        ...

    def apply_float32(self, x: Tensor) -> Tensor:
        """Like `apply`, but [T, N] float32, not rounded to the compute dtype: for logits."""
        ...


class LinearRoute(Protocol):
    """One way of multiplying. Stateless but for start-up probes."""

    @property
    def properties(self) -> RouteProperties: ...

    def refusal(self, shards: Sequence[QuantTensor]) -> str | None:
        """Why these shards cannot take this route; None if they can."""
        ...

    def pack(self, shards: Sequence[QuantTensor]) -> PackedWeight:
        """Pack shards [N_i, K], stacked along N."""
        ...


def choose_route(weights: WeightsChoice, dtype: torch.dtype, device: torch.device) -> tuple[LinearRoute, LinearRoute]:
    """The preferred route and the one for shards that it refuses (and for the output head).

    `auto` keeps weights in the compute dtype. `int8` and `int4` trade accuracy or speed for memory.
    """
    from octavo.layers.linear.dense_route import DenseRoute
    from octavo.layers.linear.int4_route import Int4Route
    from octavo.layers.linear.int8_route import Int8Route
    from octavo.layers.linear.tiled_route import TiledRoute

    dense = dtype == torch.float32 or device.type != "cpu"
    plain: LinearRoute = DenseRoute(dtype, device) if dense else TiledRoute(dtype)
    if weights == "int4":
        return Int4Route(dtype, device), plain
    if weights == "int8":
        return Int8Route(dtype, device), plain
    return plain, plain
