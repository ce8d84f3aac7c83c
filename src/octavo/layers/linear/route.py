"""What a way of multiplying by a weight must offer and declare, and which one a tensor gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo.config import WeightsChoice
from octavo.errors import InvalidRequest
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


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """The routes of a model's linears, per phase, and the one for the output head and for what they refuse."""

    prompt: LinearRoute
    generated: LinearRoute
    fallback: LinearRoute

    @property
    def by_phase(self) -> bool:
        """True if the two phases are multiplied differently, and so must be computed apart."""
        return self.prompt is not self.generated

    @property
    def description(self) -> str:
        """The routes in a few words."""
        if not self.by_phase:
            return self.prompt.properties.name
        prompt, generated = self.prompt.properties.name, self.generated.properties.name
        return f"{prompt}, {generated} for generated tokens where the file has it"

    @property
    def row_invariant(self) -> bool:
        return all(route.properties.row_invariant for route in (self.prompt, self.generated, self.fallback))

    def weight_bytes(self, shard: QuantTensor) -> int:
        """Bytes that `shard` takes packed, alone."""
        routes = {route for route in (self.prompt, self.generated) if route.refusal([shard]) is None}
        widths = [route.properties.bytes_per_weight for route in routes or {self.fallback}]
        return int(math.prod(shard.shape) * sum(widths))


def choose_route(weights: WeightsChoice, dtype: torch.dtype, device: torch.device) -> RouteChoice:
    """`full` keeps weights in the compute dtype; `int8` and `int4` trade accuracy or prefill speed for memory.

    `auto` is `full`, and in bfloat16 on a CPU generated tokens read 4-bit weights where the file has them: a single
    row's speed is that of memory, a prompt's that of arithmetic. Raises `InvalidRequest` for a choice that no tensor
    could take.
    """
    from octavo.layers.linear.dense_route import DenseRoute
    from octavo.layers.linear.int4_route import Int4Route
    from octavo.layers.linear.int8_route import Int8Route
    from octavo.layers.linear.tiled_route import TiledRoute

    on_cpu = device.type == "cpu"
    full: LinearRoute = TiledRoute(dtype) if on_cpu and dtype != torch.float32 else DenseRoute(dtype, device)
    if weights in ("int8", "int4"):
        if not on_cpu or dtype != torch.bfloat16:
            raise InvalidRequest(
                f"weights {weights} need bfloat16 compute on a CPU, not {str(dtype).removeprefix('torch.')} on "
                f"{device.type}; use --weights full"
            )
        route: LinearRoute = Int8Route(dtype) if weights == "int8" else Int4Route(dtype)
        return RouteChoice(route, route, full)
    if weights == "auto" and on_cpu and dtype == torch.bfloat16:
        return RouteChoice(full, Int4Route(dtype), full)
    return RouteChoice(full, full, full)
