"""An engine without a model: every step gives each running request its next token. For tests of what is around it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from octavo.engine.events import RequestTimes, StepEvent
from octavo.engine.machine import MachineView
from octavo.engine.stats import BlockCounts
from octavo.engine.step_meter import EngineUsage
from octavo.errors import InvalidRequest
from octavo.outputs import TextDelta
from octavo.request import Request
from octavo.sampling_params import SamplingParams


def request_of(request_id: str, num_tokens: int = 3, num_prompt: int = 2, **fields: object) -> Request:
    """A request for so many tokens."""
    params = SamplingParams(max_tokens=num_tokens)
    return Request(request_id, tuple(range(num_prompt)), params, seed=0, **fields)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Progress:
    request: Request
    num_tokens: int = 0


class FakeCore:
    """Runs up to `slots` requests; token i of a request is i, its text `<i>`.

    A prompt that begins with `REFUSED` is refused, one with `BROKEN` raises in `add`, one with `EXPIRED` expires before
    the next step, one with `POISON` ends with a fault, and one with `CRASH` raises in `step`.
    """

    REFUSED, BROKEN, EXPIRED, POISON, CRASH = 1001, 1002, 1003, 1004, 1005

    def __init__(self, slots: int = 2, step_s: float = 0.0) -> None:
        self.slots = slots
        self.step_s = step_s
        self.waiting: dict[str, _Progress] = {}
        self.running: dict[str, _Progress] = {}
        self.aborted: list[str] = []
        self.num_steps = 0
        self.expired_at: list[float] = []
        self.preemptions = self.forced_tokens = 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def queue_by_priority(self) -> Mapping[int, int]:
        return {0: self.num_waiting} if self.waiting else {}

    def usage(self) -> EngineUsage:
        return EngineUsage(
            blocks=(BlockCounts(10 - self.num_running, self.num_running, 0),), kv_bytes=7, weight_bytes=5
        )

    def machine(self) -> MachineView:
        return MachineView(num_left_out=self.num_waiting)

    def add(self, request: Request) -> None:
        kind = request.prompt_token_ids[0]
        if kind == self.REFUSED:
            raise InvalidRequest(f"request {request.request_id} is refused")
        if kind == self.BROKEN:
            raise ZeroDivisionError("nobody foresaw this")
        self.waiting[request.request_id] = _Progress(request)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.waiting.pop(request_id, None)
        self.running.pop(request_id, None)

    def expire(self, now: float) -> list[StepEvent]:
        self.expired_at.append(now)
        over = [i for i, each in self.waiting.items() if each.request.prompt_token_ids[0] == self.EXPIRED]
        return [self._fault(self.waiting.pop(i).request, "it waited too long", "queue_timeout") for i in over]

    def step(self) -> list[StepEvent]:
        self.num_steps += 1
        time.sleep(self.step_s)
        while self.waiting and len(self.running) < self.slots:
            request_id = next(iter(self.waiting))
            self.running[request_id] = self.waiting.pop(request_id)
        return [self._advance(progress) for progress in list(self.running.values())]

    def reset_prefix_cache(self) -> int:
        return 4

    def _advance(self, progress: _Progress) -> StepEvent:
        request, token = progress.request, progress.num_tokens
        if request.prompt_token_ids[0] == self.CRASH:
            raise RuntimeError("the device\nis on fire")
        if request.prompt_token_ids[0] == self.POISON:
            del self.running[request.request_id]
            return self._fault(request, "its logits are not numbers", "fault")
        progress.num_tokens += 1
        last = progress.num_tokens == request.params.max_tokens
        delta = TextDelta(request.request_id, request.choice, f"<{token}>", (token,), "length" if last else None)
        if last:
            del self.running[request.request_id]
        return StepEvent(
            delta,
            times=RequestTimes(0.0, 0.0, 0.0, 0.0) if last else None,
            num_cached_tokens=1 if token == 0 else None,
        )

    def _fault(self, request: Request, error: str, fault: str) -> StepEvent:
        delta = TextDelta(request.request_id, request.choice, "", (), "error")
        return StepEvent(delta, error=error, fault=fault)  # type: ignore[arg-type]
