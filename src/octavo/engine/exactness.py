"""Whether a model is served exactly: a token's bits its own, whatever the batch, a prompt's chunks and the storage.

Decides and gives reasons; what makes a route exact is the route's own business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.cache.spec import LayerSpec
from octavo.errors import InvalidRequest
from octavo.layers.linear import RouteChoice
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS, Codec
from octavo.storage.fused_attention import FusedAttention
from octavo.storage.route import RouteSwitches


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether it holds, and in a few words why, or why not."""

    holds: bool
    reason: str


def resolve_exact(
    choice: bool | None,
    *,
    device: torch.device,
    routes: RouteChoice,
    layout: Sequence[LayerSpec],
    codecs: tuple[Codec, Codec],
    block_size: int,
    storage: StorageKind,
) -> Exactness:
    """What `--exact` comes to. Raises `InvalidRequest` if it was asked for and cannot hold."""
    if choice is False:
        return Exactness(False, "not asked for")
    if choice is None and device.type != "cpu":
        return Exactness(False, "on a GPU it has to be asked for")
    obstacle = _obstacle(device, routes, layout, codecs, block_size, storage)
    if obstacle is None:
        return Exactness(True, "asked for" if choice else "the default on a CPU")
    if choice is None:
        return Exactness(False, obstacle[0])
    raise InvalidRequest(f"exact results were asked for, but {obstacle[0]}; use {obstacle[1]}--no-exact")


def _obstacle(
    device: torch.device,
    routes: RouteChoice,
    layout: Sequence[LayerSpec],
    codecs: tuple[Codec, Codec],
    block_size: int,
    storage: StorageKind,
) -> tuple[str, str] | None:
    """What stands in the way, and what to use instead; None if nothing does."""
    for route in (routes.first, routes.fallback):
        if not route.properties.row_invariant:
            name = route.properties.name
            return f"{name} products on {device.type} depend on the number of rows", "--dtype bfloat16, float16 or "
    if device.type == "cpu":
        return None
    if RouteSwitches.from_environment().native is False:
        return "OCTAVO_PAGED_ATTENTION_NATIVE=0 gathers keys for torch's attention", "no such switch or "
    for spec in layout:
        refusal = FusedAttention.refusal(spec, codecs, block_size, device)
        if refusal is not None:
            others = FusedAttention.refusal(spec, (CODECS["f16"], CODECS["f16"]), block_size, device)
            return f"torch computes attention ({refusal})", "--kv-dtype f16 or " if others is None else ""
        if spec.window is not None and storage is StorageKind.DENSE:
            return "dense sequences keep windowed layers in rings, which no exact kernel reads", "--storage paged or "
    return None
