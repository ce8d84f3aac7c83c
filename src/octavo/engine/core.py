"""The step loop: schedule, run, sample, hand out. One thread owns an `EngineCore` and calls `step`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixOptions
from octavo.cache.sequence import SequenceHandle
from octavo.cache.spec import group_layers
from octavo.config import MAX_COUNT, EngineConfig
from octavo.engine.deadlines import Deadlines
from octavo.engine.events import Fault, StepEvent
from octavo.engine.fault_text import cause_of
from octavo.engine.forced_tokens import ForcedTokens
from octavo.engine.grammar_queue import GrammarQueue
from octavo.engine.graph_runner import graph_runner
from octavo.engine.hand_off import NO_HAND_OFF, HandOff, model_identity
from octavo.engine.ledger import Ledger
from octavo.engine.length_check import most_tokens
from octavo.engine.live_request import LiveRequest, detokenizer_of, pooled_of, scores_of
from octavo.engine.loaded_model import LoadedModel
from octavo.engine.model_runner import ModelRunner
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.sampler import Sampler, SampleResult
from octavo.engine.step_profiler import StepProfiler
from octavo.engine.step_runner import LaunchedStep, LogitsObserver, StepRunner
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
from octavo.storage.route import RouteSwitches
from octavo.storage.snapshot import KVSnapshot, ModelIdentity

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
        config = config.on(plan.device.type)
        self.loaded = loaded
        self.storage = plan.storage.kind
        self.ledger: Ledger = plan.ledger
        groups = group_layers(loaded.model.kv_layout(plan.config))
        self.pool = CachePool(
            groups,
            config.block_size,
            self.ledger.num_blocks,
            config.max_num_seqs,
            max_append_tokens=config.chunk_tokens,
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
            switches=replace(switches or RouteSwitches.from_environment(), exact=plan.is_row_invariant),
        )
        self._shifts, self._keep = config.context_limit_policy == "shift", config.keep
        if self._shifts:
            config.check_keep(self.ledger.max_context)
            cache.check_shift()
            cache.set_rotation(loaded.model.inverse_frequencies)
        sampler = Sampler(plan.config.vocab_size, plan.device)
        graphs = graph_runner(loaded, cache, config, sampler.hashes) if plan.device.type == "cuda" else None
        self.runner = ModelRunner(loaded, cache, graphs)
        self.profiler = StepProfiler(plan.device.type)
        self._scheduler = Scheduler(
            self.pool,
            config.batch_tokens,
            config.chunk_tokens,
            self.storage,
            prefix_cache=config.prefix_cache,
            prefill_grant_interval=config.prefill_grant_interval,
        )
        self.grammars = GrammarQueue(GrammarCompiler(loaded.tokenizer, plan.config.vocab_size))
        masks = MaskWorkers(plan.config.vocab_size)
        self._forced: ForcedTokens | None = None
        if config.fast_forward and plan.is_row_invariant:
            self._forced = ForcedTokens(self._scheduler, masks, config.batch_tokens)
        self._live: dict[str, LiveRequest] = {}
        self._steps = StepRunner(
            self.runner,
            sampler,
            masks,
            self.pool,
            self._live,
            on_logits,
        )
        lookahead = config.decode_lookahead
        # A context is shifted between two steps, so a token must not be on its way then.
        self._looks_ahead = not self._shifts and (plan.device.type != "cpu" if lookahead is None else lookahead)
        self._ahead: LaunchedStep | None = None
        self._deadlines = Deadlines()
        self._untold: list[StepEvent] = []  # happened in a step that was then broken off
        self._num_lone_faults = 0

    @property
    def max_context(self) -> int:
        return self.ledger.max_context

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._untold) or len(self.grammars) > 0 or self._ahead is not None

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
    def forced_tokens(self) -> int:
        """Given without a choice by grammars, ever."""
        return 0 if self._forced is None else self._forced.num_given

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
        # Those whose grammar is being compiled, too: the scheduler has none of them.
        if request.request_id in self._live:
            raise InvalidRequest(f"request id {shown(request.request_id)} is in use; choose another")
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
        num_output, wanted = max(1, limit - len(request.prompt_token_ids)), request.params.max_tokens
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
        """The K/V of a running request as it is between two steps: all its tokens before the latest one sampled.

        Raises `InvalidRequest` if it does not run.
        """
        self._catch_up()
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
        self._catch_up()
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
        for request_id, error, fault in self.grammars.settle(idle=not self._scheduler.has_work):
            self._untold.append(self._fail(request_id, error, fault))
        if self._ahead is not None:
            self._conclude(self._ahead.step, window, looks_ahead=self._looks_ahead)
        else:
            if self._shifts:
                self._untold += [self._end(request_id) for request_id in self._scheduler.shift_contexts()]
            step = self._scheduler.schedule()
            if step is not None:
                self._conclude(step, window, looks_ahead=self._looks_ahead)
        events, self._untold = self._untold, []
        return events

    def _catch_up(self) -> None:
        """Have nothing on its way."""
        if self._ahead is not None:
            self._conclude(self._ahead.step, nullcontext, looks_ahead=False)

    def _conclude(self, step: ScheduledStep, window: Window, *, looks_ahead: bool) -> None:
        """Bring `step` to its end, with what there is to tell of it."""
        outcome = self._attempt(step, window, looks_ahead=looks_ahead)
        if isinstance(outcome, Exception):
            self._isolate(step, outcome, window)
        else:
            self._num_lone_faults = 0
            self._untold += self._hand_out(*outcome)

    def _attempt(
        self, step: ScheduledStep, window: Window, *, looks_ahead: bool = False
    ) -> tuple[LaunchedStep, SampleResult] | Exception:
        """Run `step`, unless it is on its way, and with `looks_ahead` launch the next where that is known. Or take both
        back and say why. Interrupts are raised.
        """
        launched, self._ahead = self._ahead, None
        try:
            with window(), self.profiler.step(step.batch):
                if launched is None:
                    launched = self._steps.launch(step)
                if looks_ahead and self._steps.may_be_followed(launched):
                    ahead = self._scheduler.schedule_ahead()
                    if ahead is not None:
                        self._ahead = self._steps.launch(ahead, launched)
                return launched, self._steps.read(launched)
        except BaseException as error:
            self._ahead = None
            self._scheduler.cancel(step)
            if not isinstance(error, Exception):
                raise
            return error

    def _isolate(self, step: ScheduledStep, error: Exception, window: Window) -> None:
        """Find out whose fault it was that `step` failed with `error`, and go on with the others."""
        guilty: list[tuple[str, Exception]] = []
        num_there = sum(state.finish_reason is None for state in step.states)
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
                self._untold += self._hand_out(*outcome)
        if len(guilty) == num_there:
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

    def _hand_out(self, launched: LaunchedStep, result: SampleResult) -> list[StepEvent]:
        step, tokens = launched.step, iter(result.token_ids)
        sampled = [next(tokens) if row.sample else None for row in step.batch.rows]
        self._scheduler.complete(step, sampled, launched.rings)
        now = time.perf_counter()
        told: list[tuple[LiveRequest, StepEvent]] = []
        for state, token_id, found, unsound in zip(
            launched.sampled, result.token_ids, result.logprobs, result.errors, strict=True
        ):
            live = self._live.get(state.request.request_id)
            if live is not None and live.state is state:  # else it ended while its token was on its way
                told.append((live, live.tell(token_id, found, unsound, now)))
        if self._forced is not None:
            told = self._forced.add_to(told)
        return [
            event if event.delta.finish_reason is None else self._finished(live, event, event.delta.finish_reason, now)
            for live, event in told
        ]

    def _finished(self, live: LiveRequest, event: StepEvent, reason: FinishReason, now: float) -> StepEvent:
        """The last `event` of a request, which ends, with what there is to tell of it then."""
        snapshot = None
        if live.export and event.error is None and live.handle is not None:
            snapshot = self._export(live.state, live.handle)
        self._pop(live.state.request.request_id, reason)
        return replace(event, times=live.times(now), snapshot=snapshot)
