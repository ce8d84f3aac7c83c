"""The ways a step can attend, and the count of those taken, each with its reason."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from octavo.errors import InvalidRequest


class Route(Enum):
    """How one group of rows stores and attends in one step."""

    DENSE = "dense"
    RING = "ring"
    GATHER = "gather"
    FUSED_DECODE = "fused_decode"
    FUSED_VERIFY = "fused_verify"
    VARLEN_PREFILL = "varlen_prefill"


@dataclass(slots=True)
class RouteCounts:
    """Rows planned per route and reason since construction: one count per row, group and step."""

    counts: Counter[tuple[Route, str]] = field(default_factory=Counter)

    def add(self, route: Route, reason: str, rows: int = 1) -> None:
        self.counts[route, reason] += rows

    def by_route(self) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for (route, _), count in self.counts.items():
            totals[route.value] += count
        return dict(totals)


@dataclass(frozen=True, slots=True)
class RouteSwitches:
    """What steers the choice of routes; environment switches are read once when a cache is built.

    `exact`: on a GPU, a row's bits are to depend on nothing but the row; not the environment's to say.
    `OCTAVO_PAGED_ATTENTION_NATIVE`: 0 forces gather end to end, 1 asks for the fused kernel wherever one exists.
    `OCTAVO_SDPA_DETERMINISTIC`: 1 pins deterministic kernels.
    """

    native: bool | None = None
    deterministic: bool = False
    exact: bool = False

    @classmethod
    def from_environment(cls) -> RouteSwitches:
        native = _switch("OCTAVO_PAGED_ATTENTION_NATIVE")
        return cls(native=native, deterministic=_switch("OCTAVO_SDPA_DETERMINISTIC") or False)

    def refusal(self, why_none: str | None) -> str | None:
        """Why paged rows take `gather`: a switch, or `why_none`, why no fused kernel serves them; None if one does."""
        return "OCTAVO_PAGED_ATTENTION_NATIVE=0" if self.native is False else why_none


def _switch(name: str) -> bool | None:
    value = os.environ.get(name, "")
    if value == "":
        return None
    if value not in ("0", "1"):
        raise InvalidRequest(f"{name} is {value!r}; set it to 0 or 1, or unset it")
    return value == "1"
