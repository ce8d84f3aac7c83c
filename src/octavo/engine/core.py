"""The step loop: schedule, run, sample, hand out. One thread owns an `EngineCore` and calls `step`."""

from __future__ import annotations

import time
from collections import Counter
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
from octavo.engine.deadlines import Deadlines
from octavo.engine.events import Fault, StepEvent
from octavo.engine.fault_text import cause_of
from octavo.engine.grammar_queue import GrammarQueue
from octavo.engine.hand_off import NO_HAND_OFF, HandOff, model_identity
from octavo.engine.ledger import Ledger
from octavo.engine.length_check import most_tokens
from octavo.engine.live_request import LiveRequest, detokenizer_of, pooled_of, scores_of
from octavo.engine.loaded_model import LoadedModel
from octavo.engine.model_runner import ModelRunner, sampled_rows
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.sampler import Sampler, SampleResult
from octavo.engine.sampling_mask import TokenMasks
from octavo.engine.step_profiler import StepProfiler
from octavo.errors import InvalidRequest, shown
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.mask_workers import MaskWorkers
from octavo.grammar.matcher import GrammarMatcher
from octavo.outputs import FinishReason
from octavo.request import Request, RequestState
from octavo.scheduler.scheduled_step import ScheduledStep
from octavo.scheduler.scheduler import Scheduler
from octavo.step_batch import StorageKind
from octavo.storage import KVCache
from octavo.storage.ring_state import RingState
from octavo.storage.route import RouteSwitches
from octavo.storage.snapshot import KVSnapshot, ModelIdentity


@dataclass(frozen=True, slots=True)
class _Ran:
    """What a step gave: tokens of the states that were `sampled`, in batch order, and its captures' rings."""

    sampled: list[RequestState]
    result: SampleResult
    rings: list[RingState]


LogitsObserver = Callable[[str, Tensor], None]  # request id, logits [V] float32
Window = Callable[[], AbstractContextManager[None]]
MOST_LONE_FAULTS = 3  # in a row, of steps with one request: then it is not the requests


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
        self._shifts, self._keep = config.context_limit_policy == "shift", config.keep
        if self._shifts:
            config.check_keep(self.ledger.max_context)
            cache.check_shift()
            cache.set_rotation(loaded.model.inverse_frequencies)
        self.runner = ModelRunner(loaded, cache)
        self.profiler = StepProfiler(plan.device.type)
        self._sampler = Sampler(plan.config.vocab_size, plan.device)
        self._scheduler = Scheduler(
            self.pool,
            config.max_batch_tokens,
            config.prefill_chunk,
            self.storage,
            prefix_cache=config.prefix_cache,
            prefill_grant_interval=config.prefill_grant_interval,
        )
        self.grammars = GrammarQueue(GrammarCompiler(loaded.tokenizer, plan.config.vocab_size))
        self._masks = MaskWorkers(plan.config.vocab_size)
        self._live: dict[str, LiveRequest] = {}
        self._deadlines = Deadlines()
        self._untold: list[StepEvent] = []  # happened in a step that was then broken off
        self._num_lone_faults = 0

    @property
    def max_context(self) -> int:
        return self.ledger.max_context

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._untold) or len(self.grammars) > 0

    @property
    def num_waiting(self) -> int:
        """For their turn, or for their grammar to be compiled."""
        return self._scheduler.num_waiting + len(self.grammars)

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def preemptions(self) -> int:
        """Ever."""
        return self._scheduler.preemptions

    @property
    def queue_by_priority(self) -> dict[int, int]:
        """How many wait, per priority."""
        return dict(Counter(self._scheduler.queue_by_priority) + Counter(self.grammars.priorities))

    def check(self, request: Request) -> int:
        """Most tokens (prompt and output) the request may reach.

        Raises `InvalidRequest` if it cannot be served, `CapacityError` if it could with more memory.
        """
        return most_tokens(request, self.loaded.plan.config, self.ledger)

    @cached_property
    def identity(self) -> ModelIdentity:
        """What this engine's snapshots say they were computed by. Reads a part of every weight the first time."""
        return model_identity(self.loaded)

    def add(self, request: Request, hand_off: HandOff = NO_HAND_OFF) -> None:
        """Queue a request. Raises `InvalidRequest` or `CapacityError`; then nothing was queued.

        One whose grammar has yet to be compiled waits for that first, and ends by an event if it cannot be.
        A snapshot to start from must be of this model, geometry and codecs, and a proper prefix of the prompt. Its
        deadlines count from now, by `time.perf_counter`.
        """
        limit = self.check(request)
        start = hand_off.start
        if start is not None:
            if request.reads_whole_prompt:
                asked = "mean pooling" if request.pooling else f"prompt_logprobs is {request.params.prompt_logprobs}"
                raise InvalidRequest(
                    f"{asked} and the prompt's K/V comes with a snapshot, so it is not computed; leave out one"
                )
            start.check_model(self.identity)
            self.runner.cache.check(start)
            start.check_prefix_of(request.prompt_token_ids)
        num_output, wanted = limit - len(request.prompt_token_ids), request.params.max_tokens
        keep, shifts = 0, self._shifts and limit == self.max_context
        if shifts:
            num_output, keep = MAX_COUNT if wanted is None else wanted, self._keep
        state = RequestState(request, limit, keep, num_imported_tokens=0 if start is None else start.num_tokens)
        tokenizer = self.loaded.tokenizer
        output = OutputProcessor(
            detokenizer_of(tokenizer, request.params),
            tokenizer.eos_token_ids,
            request.params,
            num_output,
            index=request.choice,
            request_id=request.request_id,
        )
        now = time.perf_counter()
        live = LiveRequest(state, output, start, hand_off.export, now, scores_of(request), pooled_of(request))

        def go_on(grammar: GrammarMatcher | None) -> None:
            live.grammar = grammar
            self._scheduler.add(state, reserve=shifts)

        if request.params.grammar is None:
            go_on(None)
        else:
            self.grammars.add(request, go_on)
        self._deadlines.add(request, now)
        self._live[request.request_id] = live

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
        self._untold = [event for event in self._untold if event.delta.request_id != request_id]
        if self._live.pop(request_id, None) is not None:
            self._deadlines.remove(request_id)
            self.grammars.remove(request_id)
            self._scheduler.abort(request_id)

    def expire(self, now: float) -> list[StepEvent]:
        """Between two steps: end the requests whose deadlines are over at `now`, by `time.perf_counter`.

        One that waits again after it was preempted has started, so its queue timeout is over.
        """
        events = []
        for deadline in self._deadlines.over(now):
            live = self._live.get(deadline.request_id)
            if live is not None and (deadline.kind == "request_timeout" or live.started is None):
                events.append(self._fail(deadline.request_id, deadline.text, deadline.kind))
        return events

    def step(self, window: Window = nullcontext) -> list[StepEvent]:
        """Run one step. Returns an event for each request that got a token or ended; [] if there was no work.

        If its device work raises, each of its requests is run by itself; who fails again ends with the cause, and the
        others go on. If all fail the step's exception is raised, and every request is where it was before; likewise
        if it is interrupted (an exception that is no `Exception`), and the next step does the work again.

        Device work, and nothing else, runs inside `window()`: a caller that holds interrupts back can let them through
        there.
        """
        if self._shifts:
            self._untold += [self._end(request_id) for request_id in self._scheduler.shift_contexts()]
        for request_id, error, fault in self.grammars.settle(idle=not self._scheduler.has_work):
            self._untold.append(self._fail(request_id, error, fault))
        step = self._scheduler.schedule()
        if step is not None:
            outcome = self._attempt(step, window)
            if isinstance(outcome, Exception):
                self._isolate(step, outcome, window)
            else:
                self._num_lone_faults = 0
                self._untold += self._hand_out(step, outcome)
        events, self._untold = self._untold, []
        return events

    def _attempt(self, step: ScheduledStep, window: Window) -> _Ran | Exception:
        """Run `step`, or take it back and say why. Interrupts are raised."""
        try:
            with window(), self.profiler.step(step.batch):
                return self._run(step)
        except BaseException as error:
            self._scheduler.cancel(step)
            if not isinstance(error, Exception):
                raise
            return error

    def _isolate(self, step: ScheduledStep, error: Exception, window: Window) -> None:
        """Find out whose fault it was that `step` failed with `error`, and go on with the others."""
        guilty: list[tuple[str, Exception]] = []
        for state, row in zip(step.states, step.batch.rows, strict=True):
            # One that returned to the line begins anew, so it may take several steps to get there again.
            while state.finish_reason is None and state.num_computed_tokens < row.stop:
                alone = self._scheduler.schedule_alone(state.request.request_id)
                if alone is None:
                    break
                outcome = self._attempt(alone, window)
                if isinstance(outcome, Exception):
                    guilty.append((state.request.request_id, outcome))
                    break
                self._untold += self._hand_out(alone, outcome)
        if len(guilty) == len(step.states):
            self._num_lone_faults += 1
            if len(guilty) > 1 or self._num_lone_faults == MOST_LONE_FAULTS:
                raise error
        else:
            self._num_lone_faults = 0
        self._untold += [self._fail(request_id, cause_of(failure), "fault") for request_id, failure in guilty]

    def _fail(self, request_id: str, error: str, fault: Fault) -> StepEvent:
        """End a request by no wish of its client."""
        live = self._pop(request_id, "error")
        times = live.times(time.perf_counter())
        return StepEvent(live.output.abort("error"), None, times, error, fault, live.untold_cached_tokens)

    def _end(self, request_id: str) -> StepEvent:
        """End a request whose context is full and cannot be shifted."""
        live = self._pop(request_id, "length")
        times = live.times(time.perf_counter())
        return StepEvent(live.output.abort("length"), times=times, num_cached_tokens=live.untold_cached_tokens)

    def _pop(self, request_id: str, reason: FinishReason) -> LiveRequest:
        if not self.grammars.remove(request_id):
            self._scheduler.finish(request_id, reason)
        self._deadlines.remove(request_id)
        return self._live.pop(request_id)

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
        sampled = [state for row, state in zip(step.batch.rows, step.states, strict=True) if row.sample]
        lives = [self._live[state.request.request_id] for state in sampled]
        pending = self._masks.begin([live.grammar for live in lives])
        hidden = self.runner.forward(step.batch)
        self._read(step, hidden)
        logits = self.runner.logits(sampled_rows(hidden, step.batch))
        rings = [self.runner.cache.ring_state(step.batch.rows[i].slot) for i in step.captures]
        if self._on_logits is not None:
            for state, row in zip(sampled, logits, strict=True):
                self._on_logits(state.request.request_id, row)
        masks = None if pending is None else TokenMasks(pending.rows, self._masks.finish(pending))
        return _Ran(sampled, self._sampler.sample(logits, [live.sampler_row() for live in lives], masks), rings)

    def _read(self, step: ScheduledStep, hidden: Tensor) -> None:
        end = 0
        for state, row in zip(step.states, step.batch.rows, strict=True):
            begin, end = end, end + row.num_tokens
            self._live[state.request.request_id].read(hidden[begin:end], row.start, self.runner, self._sampler)

    def _hand_out(self, step: ScheduledStep, ran: _Ran) -> list[StepEvent]:
        result, tokens = ran.result, iter(ran.result.token_ids)
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
            error, fault = live.failure(error)
            if error is not None:
                delta, found = live.output.abort("error"), None
            elif state.request.generates_nothing:
                delta, found = live.output.abort("length"), None
            else:
                delta = live.output.push(token_id)
                if live.grammar is not None:
                    live.grammar.note(token_id)
            scored = live.scores.entries if live.scores is not None and error is None else None
            live.scores = None
            embedding = live.pooled.vector if live.pooled is not None and error is None else None
            times, snapshot = None if num_cached is None else live.times(), None
            if delta.finish_reason is not None:
                times = live.times(now)
                if live.export and error is None and live.handle is not None:
                    snapshot = self._export(state, live.handle)
                self._pop(request_id, delta.finish_reason)
            events.append(StepEvent(delta, found, times, error, fault, num_cached, scored, snapshot, embedding))
        return events
