"""Linear layers: a weight stays a `QuantTensor` until a `LinearRoute` packs it for one way of multiplying."""

from octavo.layers.linear.linear import Head, Linear
from octavo.layers.linear.route import LinearRoute, PackedWeight, RouteChoice, Table, choose_route

__all__ = ["Head", "Linear", "LinearRoute", "PackedWeight", "RouteChoice", "Table", "choose_route"]
