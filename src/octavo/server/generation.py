"""One call's requests from the engine's events to the deltas of its choices. Streams and whole answers both read it.

It writes no JSON and knows nothing of HTTP.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from octavo.engine.events import StepEvent
from octavo.outputs import FinishReason, TokenLogprobs
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.server.choice_reader import AnswerReason, CallPiece, ChoiceReader
from octavo.server.errors import HttpError, fault_error
from octavo.server.state import ServerState

# A token id, and its log-probabilities unless it is a prompt's first.
ScoredToken = tuple[int, TokenLogprobs | None]


@dataclass(slots=True)
class ChoiceDelta:
    """What one choice gained since its last delta. `index` is the choice's in the whole call.

    `scored` are the tokens whose log-probabilities were asked for, the prompt's too where it is echoed. The deltas of
    a choice, joined, are its whole answer; only the last has a finish reason.
    """

    index: int
    text: str = ""
    scored: list[ScoredToken] = field(default_factory=list)
    finish_reason: AnswerReason | None = None
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    stop_string: str | None = None  # that ended it, where a reader looks for them

    def add(self, later: ChoiceDelta) -> None:
        """Append the next delta of the same choice."""
        self.text += later.text
        self.scored += later.scored
        self.reasoning += later.reasoning
        self.calls += later.calls
        self.finish_reason = later.finish_reason
        self.stop_string = later.stop_string


@dataclass(frozen=True, slots=True)
class Prompt:
    """`echo` is the text that each of its choices begins with; None for no echo."""

    token_ids: tuple[int, ...]
    echo: str | None = None


@dataclass(frozen=True, slots=True)
class CallUsage:
    """Tokens of all prompts, each counted once, and of all choices; of the prompts', how many were cached."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, object]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Generation:
    """The choices of one call: `params.n` of each prompt, numbered prompt by prompt.

    `deltas` may be taken once. `usage` counts what has come so far.
    """

    def __init__(
        self,
        state: ServerState,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        kind: str,
        priority: int = 0,
        cache_salt: str = "",
        new_reader: Callable[[], ChoiceReader] | None = None,
    ) -> None:
        """`kind` begins the call's id, as in chatcmpl-…; `new_reader` gives a reader for each choice, if it is to be
        read. A choice that its reader ends ends here; when all have, what still runs is aborted.
        """
        self.call_id = f"{kind}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self._state = state
        self._prompts = prompts
        self._params = params
        seed = secrets.randbits(63) if params.seed is None else params.seed
        self._requests = [
            Request(
                request_id=f"{self.call_id}-{number * params.n + choice}",
                prompt_token_ids=prompt.token_ids,
                params=params,
                seed=seed,
                choice=choice,
                priority=priority,
                cache_salt=cache_salt,
                queue_timeout_s=state.settings.queue_timeout_s,
                timeout_s=state.settings.request_timeout_s,
            )
            for number, prompt in enumerate(prompts)
            for choice in range(params.n)
        ]
        self._readers = [] if new_reader is None else [new_reader() for _ in self._requests]
        self._ended: set[int] = set()  # choices
        self._index = {request.request_id: index for index, request in enumerate(self._requests)}
        self._echoes = _Echoes(prompts, params) if any(prompt.echo is not None for prompt in prompts) else None
        self._num_completion_tokens = 0
        self._cached = [0] * len(prompts)

    @property
    def num_choices(self) -> int:
        return len(self._requests)

    @property
    def usage(self) -> CallUsage:
        return CallUsage(
            prompt_tokens=sum(len(prompt.token_ids) for prompt in self._prompts),
            completion_tokens=self._num_completion_tokens,
            cached_tokens=sum(self._cached),
        )

    async def deltas(self) -> AsyncGenerator[list[ChoiceDelta]]:
        """Run the requests; each list has at most one delta of a choice. Closing it aborts what still runs.

        Raises what `ServingEngine.run` does before the first list, and an `HttpError` when the engine ends a request
        by a fault; the others of the call end with it.
        """
        async with aclosing(self._state.run(self._requests)) as batches:
            async for events in batches:
                deltas, failure = self._take(events)
                if deltas:
                    yield deltas
                if failure is not None:
                    raise failure
                if len(self._ended) == len(self._requests):
                    break
        assert self._echoes is None or not self._echoes.holds_any, "the engine did not score a prompt"

    def _take(self, events: list[StepEvent]) -> tuple[list[ChoiceDelta], HttpError | None]:
        merged: dict[int, ChoiceDelta] = {}
        failure = None
        for event in events:
            piece = event.delta
            index = self._index[piece.request_id]
            if index in self._ended:
                continue
            if event.num_cached_tokens and index % self._params.n == 0:
                self._cached[index // self._params.n] = event.num_cached_tokens
            self._num_completion_tokens += len(piece.token_ids)
            reason = piece.finish_reason
            if reason == "error" or reason == "abort":
                failure = failure or _failure(event)
                if not piece.text:  # nothing to tell, so that a fault which comes first has a status of its own
                    continue
                reason = None
            delta = self._read(index, piece.text, reason)
            if delta.finish_reason is not None:
                self._ended.add(index)
            if event.logprobs is not None:
                delta.scored.append((event.logprobs.token_id, event.logprobs))
            if self._echoes is not None and failure is None:
                for each in self._echoes.lead(delta, event):
                    _merge(merged, each)
            else:
                _merge(merged, delta)
        return list(merged.values()), failure

    def _read(self, index: int, text: str, reason: FinishReason | None) -> ChoiceDelta:
        if not self._readers:
            return ChoiceDelta(index, text, [], reason)
        read = self._readers[index].read(text, reason)
        return ChoiceDelta(index, read.text, [], read.finish_reason, read.reasoning, read.calls, read.stop_string)


class _Echoes:
    """Puts the echoed prompt before each choice.

    The first choice alone brings the prompt's log-probabilities, so the others of a prompt are held until they came.
    """

    def __init__(self, prompts: Sequence[Prompt], params: SamplingParams) -> None:
        self._prompts = prompts
        self._n = params.n
        self._scores = params.prompt_logprobs is not None
        self._told = params.logprobs is not None
        self._scored: dict[int, list[ScoredToken]] = {}  # by prompt, once they came
        self._held: dict[int, list[ChoiceDelta]] = {}  # by prompt, until then
        self._begun: set[int] = set()  # choices

    @property
    def holds_any(self) -> bool:
        return bool(self._held)

    def lead(self, delta: ChoiceDelta, event: StepEvent) -> list[ChoiceDelta]:
        """Deltas that can go out now that `delta` came, of this choice and of those that waited for it."""
        number = delta.index // self._n
        prompt = self._prompts[number]
        if event.prompt_logprobs is not None:
            self._scored[number] = list(zip(prompt.token_ids, event.prompt_logprobs, strict=True))
        if self._scores and number not in self._scored:
            self._held.setdefault(number, []).append(delta)
            return []
        ready = []
        for each in (*self._held.pop(number, ()), delta):
            if each.index not in self._begun:
                self._begun.add(each.index)
                scored = self._scored[number] if self._scores and self._told else []
                ready.append(ChoiceDelta(each.index, prompt.echo or "", list(scored)))
            ready.append(each)
        return ready


def _merge(merged: dict[int, ChoiceDelta], delta: ChoiceDelta) -> None:
    before = merged.get(delta.index)
    if before is None:
        merged[delta.index] = delta
    else:
        before.add(delta)


def _failure(event: StepEvent) -> HttpError:
    if event.fault is None and event.error is None:
        return fault_error("shut_down", "the server ended the request; send it again")
    return fault_error(event.fault or "fault", event.error or "the engine ended the request")


def joined(deltas: Sequence[ChoiceDelta]) -> ChoiceDelta:
    """All deltas of one choice as one: its whole answer."""
    return ChoiceDelta(
        deltas[0].index,
        "".join([delta.text for delta in deltas]),
        [each for delta in deltas for each in delta.scored],
        deltas[-1].finish_reason,
        "".join([delta.reasoning for delta in deltas]),
        [each for delta in deltas for each in delta.calls],
        deltas[-1].stop_string,
    )
