"""Turns the outcomes of a cell into figures, and its rounds into medians and spreads. Plain arithmetic.

Definitions, per round of a cell:
* output tokens/s: output tokens of completed requests over the wall time of the cell.
* time to first token: from sending a request to its first chunk with output.
* inter-token latency: the time between two successive chunks with output of one stream. A chunk may carry several
  tokens; the gap is not divided among them, since nothing says when each was made. Where `tokens_per_chunk` is 1 it is
  the latency of a token.
* time per output token: of one request, (last chunk − first chunk) / (output tokens − tokens in the first chunk, 1 if
  unknown); what chunks carry does not matter to it.
* goodput: completed requests/s whose time to first token and time per output token keep within the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from octavo.bench.load_cell import CellRun, Outcome
from octavo.bench.percentiles import Quantiles, Spread


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to count as goodput; seconds."""

    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """One round of one cell. Latencies in seconds; None where no request gave any."""

    concurrency: int
    round: int
    completed: int
    cancelled: int
    failed: int
    errors: dict[str, int]
    wall_s: float
    client_cpu_s: float
    output_tokens: int
    output_tps: float
    requests_ps: float
    goodput_rps: float
    ttft_s: Quantiles | None
    itl_s: Quantiles | None
    tpot_s: Quantiles | None
    tokens_per_chunk: float | None
    exact_prompts: int
    wrong_prompts: int
    output_lengths: tuple[int, int] | None  # least and most
    tokens_from_usage: bool

    @property
    def good(self) -> bool:
        """Whether it counts: some request was answered in full."""
        return self.completed > 0

    def as_object(self) -> dict[str, object]:
        return asdict(self)


def round_figures(concurrency: int, round_: int, run: CellRun, limits: Limits) -> RoundFigures:
    """See the definitions above."""
    done = [each for each in run.outcomes if each.result == "completed"]
    tokens = [output_tokens(each) for each in done]
    counted = [each for each in run.outcomes if each.prompt_tokens is not None]
    num_exact = sum(each.prompt_tokens == each.asked_prompt_tokens for each in counted)
    chunks = sum(len(each.arrivals_s) for each in done)
    return RoundFigures(
        concurrency=concurrency,
        round=round_,
        completed=len(done),
        cancelled=sum(each.result == "cancelled" for each in run.outcomes),
        failed=sum(each.result == "failed" for each in run.outcomes),
        errors=dict(Counter(each.error for each in run.outcomes if each.error is not None)),
        wall_s=run.wall_s,
        client_cpu_s=run.client_cpu_s,
        output_tokens=sum(tokens),
        output_tps=sum(tokens) / run.wall_s,
        requests_ps=len(done) / run.wall_s,
        goodput_rps=sum(_within(each, limits) for each in done) / run.wall_s,
        ttft_s=Quantiles.of([each.arrivals_s[0] for each in done if each.arrivals_s]),
        itl_s=Quantiles.of([gap for each in done for gap in gaps(each)]),
        tpot_s=Quantiles.of([found for each in done if (found := time_per_token(each)) is not None]),
        tokens_per_chunk=sum(tokens) / chunks if chunks else None,
        exact_prompts=num_exact,
        wrong_prompts=len(counted) - num_exact,
        output_lengths=(min(tokens), max(tokens)) if tokens else None,
        tokens_from_usage=all(each.completion_tokens is not None for each in done),
    )


def output_tokens(outcome: Outcome) -> int:
    """By usage; else what the chunks say they carry, and one for each that does not say."""
    if outcome.completion_tokens is not None:
        return outcome.completion_tokens
    return sum(carried or 1 for carried in outcome.chunk_tokens)


def gaps(outcome: Outcome) -> list[float]:
    """Seconds between successive chunks with output."""
    return [after - before for before, after in pairwise(outcome.arrivals_s)]


def time_per_token(outcome: Outcome) -> float | None:
    """None for an answer that came in one chunk."""
    if len(outcome.arrivals_s) < 2:
        return None
    after_first = output_tokens(outcome) - (outcome.chunk_tokens[0] or 1)
    return (outcome.arrivals_s[-1] - outcome.arrivals_s[0]) / max(after_first, 1)


def _within(outcome: Outcome, limits: Limits) -> bool:
    if not outcome.arrivals_s or outcome.arrivals_s[0] > limits.ttft_s:
        return False
    per_token = time_per_token(outcome)
    return per_token is None or per_token <= limits.itl_s


@dataclass(frozen=True, slots=True)
class CellSummary:
    """Median and spread over the good rounds of a cell; for percentiles, over the rounds' own percentiles."""

    concurrency: int
    rounds: int
    completed: int
    cancelled: int
    failed: int
    output_tps: Spread
    requests_ps: Spread
    goodput_rps: Spread
    ttft_s: dict[str, Spread]
    itl_s: dict[str, Spread]
    tpot_s: dict[str, Spread]
    tokens_per_chunk: float | None
    client_cpu_share: float  # of one CPU, the most of any round

    def as_object(self) -> dict[str, object]:
        return asdict(self)


def summarise(rounds: Sequence[RoundFigures]) -> list[CellSummary]:
    """A summary per concurrency that has a good round, by concurrency."""
    cells: dict[int, list[RoundFigures]] = {}
    for each in rounds:
        cells.setdefault(each.concurrency, []).append(each)
    return [_summary(cell, good) for _, cell in sorted(cells.items()) if (good := [each for each in cell if each.good])]


def _summary(cell: Sequence[RoundFigures], good: Sequence[RoundFigures]) -> CellSummary:
    per_chunk = [each.tokens_per_chunk for each in good if each.tokens_per_chunk is not None]
    return CellSummary(
        concurrency=cell[0].concurrency,
        rounds=len(good),
        completed=sum(each.completed for each in cell),
        cancelled=sum(each.cancelled for each in cell),
        failed=sum(each.failed for each in cell),
        output_tps=Spread.of([each.output_tps for each in good]),
        requests_ps=Spread.of([each.requests_ps for each in good]),
        goodput_rps=Spread.of([each.goodput_rps for each in good]),
        ttft_s=_spreads([each.ttft_s for each in good]),
        itl_s=_spreads([each.itl_s for each in good]),
        tpot_s=_spreads([each.tpot_s for each in good]),
        tokens_per_chunk=Spread.of(per_chunk).median if per_chunk else None,
        client_cpu_share=max(each.client_cpu_s / each.wall_s for each in cell),
    )


def _spreads(quantiles: Sequence[Quantiles | None]) -> dict[str, Spread]:
    found = [each for each in quantiles if each is not None]
    if not found:
        return {}
    return {
        "p50": Spread.of([each.p50 for each in found]),
        "p95": Spread.of([each.p95 for each in found]),
        "p99": Spread.of([each.p99 for each in found]),
    }
