"""Turns scheduled steps into device work, and reads what came of it. Decides nothing of what is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.cache.cache_pool import CachePool
from octavo.cache.sequence import SequenceHandle
from octavo.engine.graph_runner import DecodedStep, Following
from octavo.engine.live_request import LiveRequest
from octavo.engine.model_runner import ModelRunner
from octavo.engine.sampler import DrawnTokens, Sampler, SampleResult, SamplerRow
from octavo.engine.sampling_mask import TokenMasks
from octavo.grammar.mask_workers import MaskWorkers
from octavo.request import RequestState
from octavo.scheduler.scheduled_step import ScheduledStep
from octavo.storage.ring_state import RingState

LogitsObserver = Callable[[str, Tensor], None]  # request id, logits [V] float32


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that may still be under way on its device: of the states that are `sampled`, in batch order, the tokens
    `drawn`; and its captures' rings.
    """

    step: ScheduledStep
    sampled: list[RequestState]
    drawn: DrawnTokens
    rings: list[RingState]


class StepRunner:
    """Launches the steps of the requests in `lives`, by request id, which others add to and take from."""

    def __init__(
        self,
        runner: ModelRunner,
        sampler: Sampler,
        masks: MaskWorkers,
        pool: CachePool,
        lives: Mapping[str, LiveRequest],
        on_logits: LogitsObserver | None,
    ) -> None:
        self._runner = runner
        self._sampler = sampler
        self._masks = masks
        self._pool = pool
        self._lives = lives
        self._on_logits = on_logits

    @torch.inference_mode()
    def launch(self, step: ScheduledStep, before: LaunchedStep | None = None) -> LaunchedStep:
        """`before` is the step that `step` follows, if its tokens are not known to the host."""
        if step.follows is None or -1 in step.follows:
            self._prepare(step)
        pairs = [(state, row) for row, state in zip(step.batch.rows, step.states, strict=True) if row.sample]
        sampled = [state for state, _ in pairs]
        lives = [self._lives[state.request.request_id] for state in sampled]
        rows = [live.sampler_row(row.stop) for live, (_, row) in zip(lives, pairs, strict=True)]
        pending = self._masks.begin([live.grammar for live in lives])
        plain = pending is None and self._on_logits is None and all(live.is_drawn_plainly for live in lives)
        draws = rows if plain else None
        decoded = self._decode(step, before, draws) or self._forward(step, before, draws)
        rings = [self._runner.cache.ring_state(step.batch.rows[i].slot) for i in step.captures]
        if decoded.token_ids is not None:
            return LaunchedStep(step, sampled, self._sampler.drawn(decoded.token_ids, rows, None), rings)
        logits = decoded.logits
        assert logits is not None
        if self._on_logits is not None:
            for state, row in zip(sampled, logits, strict=True):
                self._on_logits(state.request.request_id, row)
        masks = None if pending is None else TokenMasks(pending.rows, self._masks.finish(pending))
        return LaunchedStep(step, sampled, self._sampler.draw(logits, rows, masks), rings)

    def _decode(
        self, step: ScheduledStep, before: LaunchedStep | None, draws: list[SamplerRow] | None
    ) -> DecodedStep | None:
        """Run a decode step from a graph, if `draws` say how up to its tokens; None if it has to be run otherwise."""
        graphs = self._runner.graphs
        if graphs is None:
            return None
        refusal = graphs.refusal(step.batch)
        if refusal is None and any(self._lives[state.request.request_id].reads_hidden for state in step.states):
            refusal = "a prompt whose hidden states are read"
        if refusal is not None:
            graphs.counts[refusal] += 1
            return None
        return graphs.run(step.batch, _following(step, before), draws)

    def _forward(self, step: ScheduledStep, before: LaunchedStep | None, draws: list[SamplerRow] | None) -> DecodedStep:
        """Run a step up to its logits [R, V], or to its tokens if `draws` take the best and that needs no logits."""
        following = _following(step, before)
        self._runner.every_state = any(self._lives[state.request.request_id].reads_hidden for state in step.states)
        hidden = self._runner.forward(step.batch) if following is None else self._runner.forward(step.batch, following)
        self._read_prompts(step, hidden)
        hidden = self._runner.sampled(hidden)
        if draws is not None and all(row.params.greedy for row in draws):
            token_ids = self._runner.greedy(hidden)
            if token_ids is not None:
                return DecodedStep(token_ids, None)
        return DecodedStep(None, self._runner.logits(hidden))

    @torch.inference_mode()
    def read(self, launched: LaunchedStep) -> SampleResult:
        """Wait for a step's tokens."""
        return self._sampler.read(launched.drawn)

    def may_be_followed(self, launched: LaunchedStep) -> bool:
        """Whether the next step needs nothing that the host learns from this one but its tokens."""
        if self._on_logits is not None:
            return False
        for state in launched.sampled:
            live = self._lives.get(state.request.request_id)
            if live is not None and live.state is state and live.is_read_at_each_step:
                return False
        return True

    def _prepare(self, step: ScheduledStep) -> None:
        now = time.perf_counter()
        for state, row in zip(step.states, step.batch.rows, strict=True):
            live = self._lives[state.request.request_id]
            live.started = now if live.started is None else live.started
            live.handle = SequenceHandle(row.slot, row.generation)
            if live.start is not None:
                if row.start and state.num_imported_tokens:  # else it was made to begin anew
                    self._runner.cache.import_(live.start, self._pool.sequence(live.handle))
                live.start = None
        for i, snapshot in step.restores:
            assert isinstance(snapshot, RingState), "the engine's snapshots are of rings"
            self._runner.cache.restore_ring(step.batch.rows[i].slot, snapshot)

    def _read_prompts(self, step: ScheduledStep, hidden: Tensor) -> None:
        end = 0
        for state, row in zip(step.states, step.batch.rows, strict=True):
            begin, end = end, end + row.num_tokens
            live = self._lives[state.request.request_id]
            if live.reads_hidden:
                live.read(hidden[begin:end], row.start, self._runner, self._sampler)


def _following(step: ScheduledStep, before: LaunchedStep | None) -> Following | None:
    """Where `step` has its tokens from that only the device knows; None if there are none."""
    if before is None or step.follows is None or max(step.follows) < 0:
        return None
    return Following(before.drawn.token_ids, step.follows)
