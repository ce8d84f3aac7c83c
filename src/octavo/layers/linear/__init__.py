"""Linear layers: a weight stays a `QuantTensor` until a `LinearRoute` packs it for one way of multiplying."""

from octavo.layers.linear.linear import Linear
from octavo.layers.linear.route import LinearRoute, PackedWeight, choose_route

__all__ = ["Linear", "LinearRoute", "PackedWeight", "choose_route"]
