"""At start-up: do the routes of a model's weights keep, on this machine, what they declare of a row's bits?"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

from octavo.layers.linear import LinearRoute, RouteChoice
from octavo.layers.linear.row_probe import COUNTS, differing_count
from octavo.layers.quant_tensor import QuantTensor
from octavo.models.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

_ROWS = 256  # of a weight that are multiplied
_ROWS_ON_GPU = 4096  # where kernels are compiled for the weights' own height
_MOST_COLUMNS = 3  # different widths of a route's weights that are tried, the widest first


def checked_routes(routes: RouteChoice, checkpoint: Checkpoint, device: torch.device) -> RouteChoice | None:
    """`routes`, or the fallback alone where the first does not hold, which is logged; None if that does not either.

    A few rows of some weights are packed and multiplied, a few milliseconds for each.
    """
    if routes.first is not routes.fallback:
        found = _broken(routes.first, routes, checkpoint, device)
        if found is not None:
            logger.warning("%s; %s weights serve in their place", found, routes.fallback.properties.name)
            routes = RouteChoice(routes.fallback, routes.fallback)
    found = _broken(routes.fallback, routes, checkpoint, device)
    if found is not None:
        logger.warning("%s; results are not exact", found)
    return routes if found is None else None


def _broken(route: LinearRoute, routes: RouteChoice, checkpoint: Checkpoint, device: torch.device) -> str | None:
    """What of a route does not hold, in a few words; None if all that was tried does."""
    rows = _ROWS if device.type == "cpu" else _ROWS_ON_GPU
    for shard in _samples(route, routes, checkpoint, rows):
        weight = route.pack([shard])
        count = differing_count((weight.apply, weight.apply_float32), shard.shape[1], device)
        if count is not None:
            name = route.properties.name
            return f"{name} products of {shard.shape[1]} columns differ here between {count} and {COUNTS[-1]} rows"
    return None


def _samples(route: LinearRoute, routes: RouteChoice, checkpoint: Checkpoint, most_rows: int) -> Iterator[QuantTensor]:
    """The first rows of the smallest weight of each width that takes the route."""
    smallest: dict[int, QuantTensor] = {}
    for name in checkpoint.names():
        shard = checkpoint.tensor(name)
        if len(shard.shape) == 2 and routes.route([shard]) is route:
            known = smallest.get(shard.shape[1])
            if known is None or shard.shape[0] < known.shape[0]:
                smallest[shard.shape[1]] = shard
    for width in sorted(smallest, reverse=True)[:_MOST_COLUMNS]:
        yield smallest[width].rows(0, min(most_rows, smallest[width].shape[0]))
