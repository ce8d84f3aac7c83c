"""The step loop: schedule, run, sample, hand out. One thread owns an `EngineCore` and calls `step`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixOptions
from octavo.cache.sequence import SequenceHandle
from octavo.cache.spec import group_layers
from octavo.config import MAX_COUNT, EngineConfig
from octavo.engine.events import Fault, RequestTimes, StepEvent
from octavo.engine.hand_off import NO_HAND_OFF, HandOff, model_identity
from octavo.engine.ledger import Ledger
from octavo.engine.loaded_model import LoadedModel
from octavo.engine.model_runner import ModelRunner, sampled_rows
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.prompt_scores import UNSOUND_PROMPT, PromptScores
from octavo.engine.sampler import Sampler, SampleResult, SamplerRow
from octavo.errors import CapacityError, InvalidRequest, OctavoError, shown
from octavo.request import Request, RequestState
from octavo.scheduler.scheduler import ScheduledStep, Scheduler
from octavo.step_batch import StorageKind
from octavo.storage import KVCache
from octavo.storage.ring_state import RingState
from octavo.storage.route import RouteSwitches
from octavo.storage.snapshot import KVSnapshot, ModelIdentity


@dataclass(slots=True)
class _Live:
    state: RequestState
    output: OutputProcessor
    start: KVSnapshot | None  # until it has been imported
    export: bool
    scores: PromptScores | None = None  # until they are told
    handle: SequenceHandle | None = None  # of the last step
    started: float | None = None
    first_token: float | None = None

    @property
    def untold_cached_tokens(self) -> int | None:
        """What the first event says of the cache; None if that is past."""
        return self.state.num_cached_tokens if self.first_token is None else None


@dataclass(frozen=True, slots=True)
class _Ran:
    """What a step gave: tokens of the states that were `sampled`, in batch order, and its captures' rings."""

    sampled: list[RequestState]
    result: SampleResult
    rings: list[RingState]


LogitsObserver = Callable[[str, Tensor], None]  # request id, logits [V] float32
Window = Callable[[], AbstractContextManager[None]]


class EngineCore:
    """Continuous batching over one model. A request that fails ends alone; the others go on."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        on_logits: LogitsObserver | None = None,
        switches: RouteSwitches | None = None,
    ) -> None:
        """For proofs: `on_logits` is shown each request's logits before they are sampled, and may change them;
        `switches` stand in for the environment's.
        """
        plan = loaded.plan
        self.loaded = loaded
        self.storage = plan.storage.kind
        self._on_logits = on_logits
        self.ledger: Ledger = plan.ledger
        groups = group_layers(loaded.model.kv_layout(plan.config))
        self.pool = CachePool(
            groups,
            config.block_size,
            self.ledger.num_blocks,
            config.max_num_seqs,
            max_append_tokens=min(config.prefill_chunk, config.max_batch_tokens),
            prefix=PrefixOptions(
                bytes_per_block=tuple(group.bytes_per_token * config.block_size for group in self.ledger.groups),
                snapshot_limit_bytes=self.ledger.snapshot_bytes,
            ),
        )
        cache = KVCache(
            groups,
            num_blocks=self.ledger.num_blocks,
            block_size=config.block_size,
            max_seqs=config.max_num_seqs,
            max_context=self.ledger.max_context,
            codecs=plan.codecs,
            device=plan.device,
            rings=self.storage is StorageKind.DENSE,
            switches=switches,
        )
        self._shifts = config.context_limit_policy == "shift"
        self._keep = config.keep
        if self._shifts:
            config.check_keep(self.ledger.max_context)
            cache.check_shift()
            cache.set_rotation(loaded.model.inverse_frequencies)
        self.runner = ModelRunner(loaded, cache)
        self._sampler = Sampler(plan.config.vocab_size, plan.device)
        self._scheduler = Scheduler(
            self.pool, config.max_batch_tokens, config.prefill_chunk, self.storage, prefix_cache=config.prefix_cache
        )
        self._live: dict[str, _Live] = {}

    @property
    def max_context(self) -> int:
        return self.ledger.max_context

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def check(self, request: Request) -> int:
        """Most tokens (prompt and output) the request may reach.

        Raises `InvalidRequest` if it cannot be served, `CapacityError` if it could with more memory.
        """
        vocab_size = self.loaded.plan.config.vocab_size
        prompt = request.prompt_token_ids
        if not prompt:
            raise InvalidRequest("the prompt has 0 tokens; give at least 1")
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= vocab_size:
            bad = low if low < 0 else high
            raise InvalidRequest(f"the prompt has token id {shown(bad)}; the vocabulary has ids 0 to {vocab_size - 1}")
        if len(prompt) >= self.max_context:
            raise self._too_long(len(prompt))
        request.params.check_vocabulary(vocab_size)
        wanted = request.params.max_tokens
        # One that generates nothing still computes its last token, which makes room for one more.
        return self.max_context if wanted is None else min(self.max_context, len(prompt) + max(1, wanted))

    def _too_long(self, num_prompt: int) -> OctavoError:
        most, limit = self.max_context, self.ledger.context_limit
        if most < limit:
            return CapacityError(
                f"the prompt has {num_prompt} tokens; the K/V memory holds {most} of one sequence, one of them for "
                f"output: shorten it to at most {most - 1}, or raise the kv budget"
            )
        model = self.loaded.plan.config.max_position_embeddings
        remedy = f" or raise the max context (this model takes {model})" if limit < model else ""
        return InvalidRequest(
            f"the prompt has {num_prompt} tokens; the context holds {limit}, one of them for output: "
            f"shorten it to at most {limit - 1}{remedy}"
        )

    @cached_property
    def identity(self) -> ModelIdentity:
        """What this engine's snapshots say they were computed by. Reads a part of every weight the first time."""
        return model_identity(self.loaded)

    def add(self, request: Request, hand_off: HandOff = NO_HAND_OFF) -> None:
        """Queue a request. Raises `InvalidRequest` or `CapacityError`; then nothing was queued.

        A snapshot to start from must be of this model, geometry and codecs, and a proper prefix of the prompt.
        """
        limit = self.check(request)
        start = hand_off.start
        if start is not None:
            if request.scores_prompt:
                raise InvalidRequest(
                    f"prompt_logprobs is {request.params.prompt_logprobs} and the prompt's K/V comes with a snapshot, "
                    "so no logits tell them; leave out one of the two"
                )
            start.check_model(self.identity)
            self.runner.cache.check(start)
            start.check_prefix_of(request.prompt_token_ids)
        num_prompt, wanted = len(request.prompt_token_ids), request.params.max_tokens
        num_output = limit - num_prompt
        keep = 0
        if self._shifts and limit == self.max_context:
            num_output, keep = MAX_COUNT if wanted is None else wanted, self._keep
        state = RequestState(request, limit, keep, num_imported_tokens=0 if start is None else start.num_tokens)
        tokenizer = self.loaded.tokenizer
        output = OutputProcessor(
            tokenizer.detokenizer(),
            tokenizer.eos_token_ids,
            request.params,
            num_output,
            index=request.choice,
            request_id=request.request_id,
        )
        self._scheduler.add(state)
        self._live[request.request_id] = _Live(state, output, start, hand_off.export, scores=_scores(request))

    def export(self, request_id: str) -> KVSnapshot:
        """The K/V of a running request as it is between two steps: all its tokens but the last, newest one.

        Raises `InvalidRequest` if it does not run.
        """
        live = self._live.get(request_id)
        if live is None or live.state.slot is None or live.handle is None:
            raise InvalidRequest(
                f"request {shown(request_id)} does not run, so it has no K/V to export; wait for a step"
            )
        return self._export(live.state, live.handle)

    def _export(self, state: RequestState, handle: SequenceHandle) -> KVSnapshot:
        token_ids = state.tokens(0, state.num_computed_tokens)
        return self.runner.cache.export(self.pool.sequence(handle), token_ids, self.identity)

    def preempt(self, request_id: str) -> None:
        """Between two steps: take a running request's slot and blocks. It is computed again when there is room, and
        goes on as if nothing had happened. Raises `InvalidRequest` if it does not run.
        """
        live = self._live.get(request_id)
        if live is None or live.state.slot is None:
            raise InvalidRequest(f"request {shown(request_id)} does not run, so it cannot be preempted")
        self._scheduler.preempt(request_id)

    def abort(self, request_id: str) -> None:
        """Forget a request, waiting or running; its blocks are free at once. Unknown ids are passed over."""
        if self._live.pop(request_id, None) is not None:
            self._scheduler.abort(request_id)

    def step(self, window: Window = nullcontext) -> list[StepEvent]:
        """Run one step. Returns an event for each request that got a token or ended; [] if there was no work.

        If its device work raises, every request is where it was before, and the next step does the work again. That
        work, and nothing else, runs inside `window()`: a caller that holds interrupts back can let them through there.
        """
        ended = [self._end(request_id) for request_id in self._scheduler.shift_contexts()] if self._shifts else []
        step = self._scheduler.schedule()
        if step is None:
            return ended
        try:
            with window():
                ran = self._run(step)
        except BaseException:
            self._scheduler.cancel(step)
            raise
        return ended + self._hand_out(step, ran)

    def _end(self, request_id: str) -> StepEvent:
        """End a request whose context is full and cannot be shifted."""
        live, now = self._live.pop(request_id), time.perf_counter()
        self._scheduler.finish(request_id, "length")
        started = live.started or now
        times = RequestTimes((live.first_token or now) - started, now - (live.first_token or now))
        return StepEvent(live.output.abort("length"), times=times, num_cached_tokens=live.untold_cached_tokens)

    @torch.inference_mode()
    def _run(self, step: ScheduledStep) -> _Ran:
        now = time.perf_counter()
        for state, row in zip(step.states, step.batch.rows, strict=True):
            live = self._live[state.request.request_id]
            live.started = now if live.started is None else live.started
            live.handle = SequenceHandle(row.slot, row.generation)
            if live.start is not None:
                if row.start and state.num_imported_tokens:  # else it was made to begin anew
                    self.runner.cache.import_(live.start, self.pool.sequence(live.handle))
                live.start = None
        for i, snapshot in step.restores:
            assert isinstance(snapshot, RingState), "the engine's snapshots are of rings"
            self.runner.cache.restore_ring(step.batch.rows[i].slot, snapshot)
        hidden = self.runner.forward(step.batch)
        self._score(step, hidden)
        logits = self.runner.logits(sampled_rows(hidden, step.batch))
        rings = [self.runner.cache.ring_state(step.batch.rows[i].slot) for i in step.captures]
        sampled = [state for row, state in zip(step.batch.rows, step.states, strict=True) if row.sample]
        if self._on_logits is not None:
            for state, row in zip(sampled, logits, strict=True):
                self._on_logits(state.request.request_id, row)
        return _Ran(sampled, self._sampler.sample(logits, [_sampler_row(state) for state in sampled]), rings)

    def _score(self, step: ScheduledStep, hidden: Tensor) -> None:
        end = 0
        for state, row in zip(step.states, step.batch.rows, strict=True):
            begin, end = end, end + row.num_tokens
            scores = self._live[state.request.request_id].scores
            if scores is not None:
                scores.add(hidden[begin:end], row.start, self.runner, self._sampler)

    def _hand_out(self, step: ScheduledStep, ran: _Ran) -> list[StepEvent]:
        result = ran.result
        tokens = iter(result.token_ids)
        self._scheduler.complete(step, [next(tokens) if row.sample else None for row in step.batch.rows], ran.rings)
        now = time.perf_counter()
        events = []
        for state, token_id, found, error in zip(
            ran.sampled, result.token_ids, result.logprobs, result.errors, strict=True
        ):
            request_id = state.request.request_id
            live = self._live[request_id]
            num_cached = live.untold_cached_tokens
            if live.first_token is None:
                live.first_token = now
            error = error or (UNSOUND_PROMPT if live.scores is not None and live.scores.failed else None)
            if error is not None:
                delta, found = live.output.abort("error"), None
            elif state.request.params.max_tokens == 0:
                delta, found = live.output.abort("length"), None
            else:
                delta = live.output.push(token_id)
            scored = live.scores.entries if live.scores is not None and error is None else None
            live.scores = None
            times = snapshot = None
            if delta.finish_reason is not None:
                times = RequestTimes(live.first_token - (live.started or now), now - live.first_token)
                if live.export and error is None and live.handle is not None:
                    snapshot = self._export(state, live.handle)
                self._scheduler.finish(request_id, delta.finish_reason)
                del self._live[request_id]
            fault: Fault | None = None if error is None else "fault"
            events.append(StepEvent(delta, found, times, error, fault, num_cached, scored, snapshot))
        return events


def _scores(request: Request) -> PromptScores | None:
    num_top = request.params.prompt_logprobs
    return PromptScores(request.prompt_token_ids, num_top) if request.scores_prompt and num_top is not None else None


def _sampler_row(state: RequestState) -> SamplerRow:
    request = state.request
    return SamplerRow(
        params=request.params,
        seed=request.seed,
        choice=request.choice,
        position=state.num_tokens,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=state.output_token_ids,
    )
