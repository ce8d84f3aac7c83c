"""What a way of multiplying by a weight must offer and declare, and which one a tensor gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from octavo.config import WeightsChoice
from octavo.errors import InvalidRequest
from octavo.kernels.cpu import library
from octavo.kernels.rows import Activation, HalfNormed
from octavo.layers.quant_tensor import QuantTensor


@dataclass(frozen=True, slots=True)
class RouteProperties:
    """What a route promises. `row_invariant`: a row's result is bitwise the same at every row count.

    `weight_error` bounds |packed - w| relative to the largest |w| of its row (0: exact).
    """

    name: str
    row_invariant: bool
    weight_error: float


class PackedWeight(Protocol):
    """A weight [N, K] (the concatenation of one or more shards) in the form a kernel reads."""

    @property
    def num_bytes(self) -> int: ...

    def apply(self, x: Tensor) -> Tensor:
        """x [T, K] float32, rounded to what the kernel takes -> [T, N], float32 or the compute dtype."""
        ...

    def apply_float32(self, x: Tensor) -> Tensor:
        """Like `apply`, but [T, N] float32, not rounded to the compute dtype: for logits."""
        ...


@runtime_checkable
class Table(PackedWeight, Protocol):
    """A packed weight whose rows can be looked up: what routes that `serves_embedding` pack."""

    def lookup(self, ids: Tensor) -> Tensor:
        """Rows `ids` [T] int64 -> [T, K] float32."""
        ...


@runtime_checkable
class FusingWeight(PackedWeight, Protocol):
    """A packed weight whose kernels may do what stands before and after a product, too."""

    def apply_gated(self, x: Tensor | HalfNormed, activation: Activation) -> Tensor | None:
        """`gate(apply(x), activation)`; None where that takes two kernels."""
        ...

    def apply_in_parts(self, x: Tensor) -> Tensor | None:
        """Parts of `apply(x)` [S, T, N] float32, which add up to it; None where it is not computed in parts."""
        ...

    def apply_half_normed(self, x: HalfNormed) -> Tensor | None:
        """`apply` of the norm; None where a product does not take it in halves."""
        ...

    def add_to_(self, total: Tensor, x: Tensor) -> bool:
        """total [T, N] float32 += `apply(x)`; False, with nothing done, where that takes two kernels."""
        ...

    def add_for_norm_(self, total: Tensor, x: Tensor, weight: Tensor, eps: float) -> HalfNormed | None:
        """`add_to_`, and half of the sum's norm; None, with nothing done, where that takes two kernels."""
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

    def packed_bytes(self, shard: QuantTensor) -> int:
        """Bytes that a shard which is not refused takes packed."""
        ...

    @property
    def serves_embedding(self) -> bool:
        """Whether rows of a packed weight can be looked up, so that a tied embedding needs no copy."""
        ...


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """The route of a model's weights, and the one for those that it refuses."""

    first: LinearRoute
    fallback: LinearRoute

    def route(self, shards: Sequence[QuantTensor]) -> LinearRoute:
        return self.first if self.first.refusal(shards) is None else self.fallback

    @property
    def description(self) -> str:
        """The routes in a few words."""
        if self.first is self.fallback:
            return self.first.properties.name
        return f"{self.first.properties.name}, else {self.fallback.properties.name}"

    @property
    def row_invariant(self) -> bool:
        return self.first.properties.row_invariant and self.fallback.properties.row_invariant


def choose_route(
    weights: WeightsChoice, dtype: torch.dtype, device: torch.device, *, exact: bool | None = None
) -> RouteChoice:
    """`auto` keeps quantised weights as the file has them where there is a kernel for that, in 16-bit compute.

    There `full` keeps all weights in the compute dtype; on a CPU `int8` and `int4` take torch's kernels for narrow
    weights. On a GPU `exact` takes forms that are row-invariant. A CPU's 16-bit routes all are,
    unless it is False, which permits one that is faster for prompts.
    Raises `InvalidRequest` for a choice that no tensor could take.
    """
    from octavo.layers.linear.affine_route import AffineRoute
    from octavo.layers.linear.dense_route import DenseRoute
    from octavo.layers.linear.int4_route import Int4Route
    from octavo.layers.linear.int8_route import Int8Route
    from octavo.layers.linear.prompt_route import PromptRoute
    from octavo.layers.linear.tiled_route import TiledRoute

    sixteen_bit_cpu = device.type == "cpu" and dtype != torch.float32
    full: LinearRoute = TiledRoute(dtype) if sixteen_bit_cpu else DenseRoute(dtype, device)
    if weights in ("int8", "int4"):
        if device.type != "cpu" or dtype != torch.bfloat16:
            raise InvalidRequest(
                f"weights {weights} need bfloat16 compute on a CPU, not {str(dtype).removeprefix('torch.')} on "
                f"{device.type}; use --weights full"
            )
        return RouteChoice(Int8Route(dtype) if weights == "int8" else Int4Route(dtype), full)
    if device.type == "cuda" and dtype != torch.float32 and find_spec("triton") is not None:
        return _gpu_routes(weights, dtype, device, exact=exact is True)
    if weights == "auto" and sixteen_bit_cpu:
        if library.load().functions is not None:
            faster = exact is False and dtype == torch.bfloat16 and PromptRoute.is_faster()
            return RouteChoice(PromptRoute() if faster else AffineRoute(), full)
        if dtype == torch.bfloat16:
            return RouteChoice(Int4Route(dtype), full)
    return RouteChoice(full, full)


def _gpu_routes(weights: WeightsChoice, dtype: torch.dtype, device: torch.device, *, exact: bool) -> RouteChoice:
    from octavo.kernels.triton.skinny_gemm import SkinnyScratch
    from octavo.layers.linear.codes_route import CodesRoute
    from octavo.layers.linear.skinny_route import SkinnyRoute

    scratch = SkinnyScratch(device)
    full = SkinnyRoute(dtype, device, scratch, exact=exact)
    return RouteChoice(CodesRoute(dtype, device, scratch, exact=exact) if weights == "auto" else full, full)
