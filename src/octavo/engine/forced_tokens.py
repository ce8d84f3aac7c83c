"""Gives answers the tokens that their grammars leave no choice about. Runs no step, and decides no end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.engine.events import StepEvent
from octavo.engine.live_request import LiveRequest
from octavo.grammar.mask_workers import MaskWorkers
from octavo.outputs import TextDelta
from octavo.scheduler.scheduler import Scheduler

MOST_FORCED = 32  # tokens of one request between two steps

Told = tuple[LiveRequest, StepEvent]


class ForcedTokens:
    """Between two steps: where a mask allows one token alone, that is taken as if it had been sampled, and so on.

    The next step computes them together, so this is for routes by which a token's K/V and logits are the same to the
    bit in any company. Nothing is sampled, hence nothing looked at for NaN; a sampled token's logits still are.
    """

    def __init__(self, scheduler: Scheduler, masks: MaskWorkers, max_batch_tokens: int) -> None:
        """`max_batch_tokens`: tokens per step, of which each running request has one to compute anyway."""
        self._scheduler = scheduler
        self._masks = masks
        self._max_batch_tokens = max_batch_tokens
        self.num_given = 0  # ever

    def add_to(self, told: Sequence[Told]) -> list[Told]:
        """What a step told of its requests, with the tokens that follow from what it gave them."""
        events = list(told)
        places = [i for i, (live, event) in enumerate(told) if event.delta.finish_reason is None and live.may_be_led]
        if not places:
            return events
        share = min(MOST_FORCED, (self._max_batch_tokens - self._scheduler.num_running) // len(places))
        asked = []
        for i in places:
            grammar = told[i][0].grammar
            assert grammar is not None, "only a grammar leads"
            asked.append((grammar, min(share, self._scheduler.room(told[i][0].state.request.request_id))))
        for i, token_ids in zip(places, self._masks.forced(asked), strict=True):
            if token_ids:
                live, event = told[i]
                events[i] = live, self._given(live, event, token_ids)
        return events

    def _given(self, live: LiveRequest, event: StepEvent, token_ids: list[int]) -> StepEvent:
        deltas, error = [event.delta], None
        for token_id in token_ids:
            delta, error = live.push(token_id)
            deltas.append(delta)
            if delta.finish_reason is not None:
                break
        num_taken = len(deltas) - 1
        self._scheduler.give(live.state.request.request_id, token_ids[:num_taken])
        self.num_given += num_taken
        return replace(event, delta=_joined(deltas), error=error, fault=None if error is None else "fault")


def _joined(deltas: list[TextDelta]) -> TextDelta:
    """What they say one after another."""
    last = deltas[-1]
    token_ids = tuple([token_id for delta in deltas for token_id in delta.token_ids])
    return replace(last, text="".join([delta.text for delta in deltas]), token_ids=token_ids)
