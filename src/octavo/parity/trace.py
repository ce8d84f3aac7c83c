"""What an arm produced, and how two arms are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class Trace:
    """One prompt's greedy tokens and, where they could be observed, the logits [V] each was taken from.

    `problem` says why the arm failed whatever its tokens are.
    """

    token_ids: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    routes: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None

    def margin(self, step: int) -> float:
        """The lead of the best token over the second at `step`."""
        best = self.logits[step].topk(2).values
        return float(best[0] - best[1])


@dataclass(frozen=True, slots=True)
class Comparison:
    """`first_divergence` is the first step with another token. `max_logit_diff` covers the steps up to it.

    It is None where logits could not be observed.
    """

    first_divergence: int | None
    max_logit_diff: float | None
    agrees: bool


def compare(trace: Trace, reference: Trace, *, bitwise: bool, margin: float, forced: bool = False) -> Comparison:
    """`bitwise`: tokens and logits must be equal to the last bit.

    Otherwise tokens must be equal up to the first step whose lead in the reference is at most `margin`; what follows
    a difference there has another context and is not compared. `forced`: the reference was given the arm's own tokens,
    so every step has the same context and is compared, also after such a difference.
    """
    shared = min(len(trace.token_ids), len(reference.token_ids))
    pairs = zip(trace.token_ids, reference.token_ids, strict=False)
    differing = [i for i, (a, b) in enumerate(pairs) if a != b]
    divergence = differing[0] if differing else None
    if divergence is None and len(trace.token_ids) != len(reference.token_ids):
        divergence = shared
    compared = shared if divergence is None or forced else min(shared, divergence + 1)
    difference = None
    if trace.logits:
        diffs = [(trace.logits[i] - reference.logits[i]).abs().max().item() for i in range(compared)]
        difference = max(diffs, default=0.0)
    if bitwise:
        return Comparison(divergence, difference, divergence is None and not difference)
    ties = [reference.margin(step) <= margin for step in (differing if forced else differing[:1])]
    complete = not forced or len(trace.token_ids) == len(reference.token_ids)
    return Comparison(divergence, difference, divergence is None or (bool(ties) and all(ties) and complete))
