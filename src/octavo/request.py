"""One request as the engine holds it. No torch, no text: token ids in, token ids out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from octavo.outputs import FinishReason
from octavo.sampling_params import SamplingParams

Pooling = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = ("mean", "last")


@dataclass(frozen=True, slots=True)
class Request:
    """What a client submits: one prompt, one choice. `n` choices are `n` requests that share a prompt.

    `seed` is always set by the time a request exists; `choice` distinguishes the `n` choices of one prompt.
    A lower `priority` is served earlier, as users of nice(1) expect. Requests share cached prefixes only with those of
    the same `cache_salt`. `queue_timeout_s` and `timeout_s` are seconds that it may wait for its first step, and that
    it may take in all; None for no limit. One with `pooling` generates nothing: it wants one vector of its prompt.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    choice: int = 0
    priority: int = 0
    cache_salt: str = ""
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    pooling: Pooling | None = None

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt are wanted: of several choices, the first tells them."""
        return self.params.prompt_logprobs is not None and self.choice == 0

    @property
    def reads_whole_prompt(self) -> bool:
        """Whether every token of the prompt has to be computed, so that none may come from the prefix cache."""
        return self.scores_prompt or self.pooling == "mean"

    @property
    def generates_nothing(self) -> bool:
        return self.params.max_tokens == 0 or self.pooling is not None


@dataclass(slots=True)
class RequestState:
    """A request's progress. Mutated by the scheduler only.

    A request catches up on `num_computed_tokens` until it equals `num_tokens`; when it does, the step samples one
    more token. `max_total_tokens` is the most it holds at once; beyond that it forgets all but its first `keep`, or it
    ends. The K/V of the first `num_imported_tokens` comes with it: they count as computed when it gets a slot.
    `num_cached_tokens` were there when it first got one, imported or in the prefix cache; None before.
    """

    request: Request
    max_total_tokens: int
    keep: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_imported_tokens: int = 0
    num_cached_tokens: int | None = None
    slot: int | None = None
    finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids at positions `[start, stop)` of prompt followed by output."""
        prompt = self.request.prompt_token_ids
        if stop <= len(prompt):
            return prompt[start:stop]
        if start >= len(prompt):  # the decode path: never copy the whole prompt for one token
            return tuple(self.output_token_ids[start - len(prompt) : stop - len(prompt)])
        return (prompt + tuple(self.output_token_ids))[start:stop]
