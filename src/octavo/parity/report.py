"""The outcome of a parity run, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm against the reference. `problem` says why it failed, beyond what the numbers show.

    An arm that sees no logits compares log-probabilities in their place, or nothing. `margin` is there if the arm is
    held to less than the run is: to tokens wherever the reference leads by more.
    """

    name: str
    equal: bool
    first_divergence: int | None
    max_logit_diff: float | None
    routes: Mapping[str, int]
    problem: str | None = None
    margin: float | None = None

    def as_object(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "equal": self.equal,
            "first_divergence": self.first_divergence,
            "max_logit_diff": self.max_logit_diff,
            "routes": dict(self.routes),
        }

    def line(self) -> str:
        verdict = "equal" if self.equal else f"DIFFERS ({self.problem})" if self.problem else "DIFFERS"
        diff = "not observed" if self.max_logit_diff is None else f"{self.max_logit_diff:.3g}"
        first = "none" if self.first_divergence is None else str(self.first_divergence)
        routes = ", ".join(f"{name} {count}" for name, count in self.routes.items())
        held = "" if self.margin is None else f"; held to leads of more than {self.margin:g}"
        return (
            f"{self.name:<22} {verdict:<10} divergent token: {first}; largest logit difference: {diff}; {routes}{held}"
        )


def joined_result(name: str, parts: Sequence[ArmResult]) -> ArmResult:
    """Parts of one arm, at least one, that took the same routes: equal if all are. The first that is not is named."""
    wrong = next((part for part in parts if not part.equal), None)
    divergences = [part.first_divergence for part in parts if part.first_divergence is not None]
    diffs = [part.max_logit_diff for part in parts if part.max_logit_diff is not None]
    return ArmResult(
        name,
        wrong is None,
        min(divergences, default=None),
        max(diffs, default=None),
        parts[0].routes,
        None if wrong is None else f"{wrong.name}: {wrong.problem or 'another answer'}",
    )


@dataclass(frozen=True, slots=True)
class Report:
    """`contract` says what agreement meant: bitwise, or tokens above a margin."""

    model: str
    contract: str
    arms: tuple[ArmResult, ...]

    @property
    def equal(self) -> bool:
        return all(arm.equal for arm in self.arms)

    def as_object(self) -> dict[str, Any]:
        return {"model": self.model, "equal": self.equal, "arms": [arm.as_object() for arm in self.arms]}
