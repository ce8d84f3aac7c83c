"""One request as the engine core keeps it, from being queued to its last event. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from octavo.cache.sequence import SequenceHandle
from octavo.engine.events import Fault, RequestTimes, StepEvent
from octavo.engine.fault_text import cause_of
from octavo.engine.model_runner import ModelRunner
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.pooled_prompt import UNSOUND_VECTOR, PooledPrompt
from octavo.engine.prompt_scores import UNSOUND_PROMPT, PromptScores
from octavo.engine.sampler import Sampler, SamplerRow, is_drawn_plainly
from octavo.engine.sampling_adjustments import penalises
from octavo.grammar.matcher import GrammarMatcher
from octavo.outputs import TextDelta, TokenLogprobs
from octavo.request import Request, RequestState
from octavo.sampling_params import SamplingParams
from octavo.storage.snapshot import KVSnapshot
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.detokenizer import IncrementalDetokenizer


@dataclass(slots=True)
class LiveRequest:
    """`queued`, `started` and `first_token` are times by `time.perf_counter`."""

    state: RequestState
    output: OutputProcessor
    start: KVSnapshot | None  # until it has been imported
    export: bool
    queued: float
    scores: PromptScores | None = None  # until they are told
    pooled: PooledPrompt | None = None
    handle: SequenceHandle | None = None  # of the last step
    grammar: GrammarMatcher | None = None
    started: float | None = None
    first_token: float | None = None
    is_drawn_plainly: bool = field(init=False)
    _tells_more: bool = field(init=False)

    def __post_init__(self) -> None:
        request, params = self.state.request, self.state.request.params
        self.is_drawn_plainly = is_drawn_plainly(params)
        self._tells_more = (
            self.export
            or request.generates_nothing
            or request.reads_whole_prompt
            or params.logprobs is not None
            or penalises(params)
        )

    @property
    def untold_cached_tokens(self) -> int | None:
        """What the first event says of the cache; None if that is past."""
        return self.state.num_cached_tokens if self.first_token is None else None

    def tell(self, token_id: int, logprobs: TokenLogprobs | None, unsound: str | None, now: float) -> StepEvent:
        """What a step says of it that ended at `now` and gave it `token_id`, unless its logits were `unsound`."""
        if self.first_token is not None and unsound is None and not self.is_read_at_each_step:
            delta, error = self.push(token_id)
            return StepEvent(delta) if error is None else StepEvent(delta, error=error, fault="fault")
        num_cached = self.untold_cached_tokens
        if self.first_token is None:
            self.first_token = now
        error, fault = self.failure(unsound)
        if error is not None:
            delta = self.output.abort("error")
        elif self.state.request.generates_nothing:
            delta, logprobs = self.output.abort("length"), None
        else:
            delta, error = self.take(token_id)
            fault = None if error is None else "fault"
        scored = self.scores.entries if self.scores is not None and error is None else None
        self.scores = None
        return StepEvent(
            delta,
            logprobs if error is None else None,
            None if num_cached is None else self.times(),
            error,
            fault,
            num_cached,
            scored,
            embedding=self.pooled.vector if self.pooled is not None and error is None else None,
        )

    def take(self, token_id: int) -> tuple[TextDelta, str | None]:
        """`push`, and the grammar goes on with it."""
        delta, error = self.push(token_id)
        if self.grammar is not None and error is None:
            self.grammar.note(token_id)
        return delta, error

    def push(self, token_id: int) -> tuple[TextDelta, str | None]:
        """What its next token says, and the cause if no text can be made of it: then the request ends, it alone."""
        try:
            return self.output.push(token_id), None
        except Exception as error:  # noqa: BLE001 - whatever the tokenizer met ends this request alone
            return self.output.break_off(), cause_of(error)

    def failure(self, sampling: str | None) -> tuple[str, Fault] | tuple[None, None]:
        """Why the request ends with this step, if by no wish of its client; `sampling` is what the sampler says."""
        if sampling is not None:
            return sampling, "fault"
        if self.scores is not None and self.scores.failed:
            return UNSOUND_PROMPT, "fault"
        if self.pooled is not None and self.pooled.vector is None:
            return UNSOUND_VECTOR, "fault"
        if self.grammar is not None and self.grammar.error is not None:
            return self.grammar.error, "fault" if self.grammar.failure == "fault" else "invalid_grammar"
        return None, None

    def read(self, hidden: Tensor, start: int, runner: ModelRunner, sampler: Sampler) -> None:
        """Take the hidden states [T, H] of the tokens at positions `start` and on, for what is told of the prompt."""
        if self.scores is not None:
            self.scores.add(hidden, start, runner, sampler)
        if self.pooled is not None:
            self.pooled.add(hidden, start)

    def times(self, ended: float | None = None) -> RequestTimes:
        """So far, or of a request that has `ended`, before its first step or token perhaps."""
        return RequestTimes(self.queued, self.started, self.first_token, ended)

    @property
    def reads_hidden(self) -> bool:
        """Whether something is told of its prompt's hidden states yet."""
        return self.scores is not None or self.pooled is not None

    @property
    def is_read_at_each_step(self) -> bool:
        """Whether its next step may depend on more than the latest token, or is told more of than its tokens."""
        return self._tells_more or self.grammar is not None

    @property
    def may_be_led(self) -> bool:
        """Whether a token that has no alternative need not be sampled: nothing but its id is told of it."""
        return self.grammar is not None and not self.export and self.state.request.params.logprobs is None

    def sampler_row(self, position: int) -> SamplerRow:
        """What the sampler needs to give the token at `position`."""
        state, request = self.state, self.state.request
        return SamplerRow(
            request.params, request.seed, request.choice, position, request.prompt_token_ids, state.output_token_ids
        )


def scores_of(request: Request) -> PromptScores | None:
    """Where the log-probabilities of a request's prompt are gathered; None if it did not ask for them."""
    num_top = request.params.prompt_logprobs
    return PromptScores(request.prompt_token_ids, num_top) if request.scores_prompt and num_top is not None else None


def pooled_of(request: Request) -> PooledPrompt | None:
    """Where the vector of a request's prompt is gathered; None if it wants none."""
    return None if request.pooling is None else PooledPrompt(len(request.prompt_token_ids), request.pooling)


def detokenizer_of(tokenizer: Tokenizer, params: SamplingParams) -> IncrementalDetokenizer:
    """What makes text of a choice's tokens. All that a grammar derives is told, a space in front too."""
    return tokenizer.detokenizer(
        skip_special_tokens=params.skip_special_tokens,
        shown_ids=params.shown_token_ids,
        keep_leading_space=params.grammar is not None,
    )
