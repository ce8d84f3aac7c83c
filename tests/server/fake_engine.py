"""An engine for server tests: it runs no model, says a scripted reply a byte-token at a time, and keeps count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tokenizers.pre_tokenizers import ByteLevel

from octavo.cache.block_map import GroupMap
from octavo.engine.events import Fault, RequestTimes, StepEvent
from octavo.engine.machine import MachineSnapshot, MachineView, RequestProgress
from octavo.engine.profile import Profile, ProfileSettings
from octavo.engine.serving import EngineState, EngineStatus, ModelInfo
from octavo.engine.stats import BlockCounts, DecodeSteps, EngineStats, HistogramCounts, PrefixCounts, RouteCount
from octavo.errors import EngineFault, InvalidRequest, NotReady, OctavoError, ShuttingDown
from octavo.outputs import FinishReason, TextDelta, TokenLogprobs
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.vocabulary import TokenKind

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
EOS_TEXT = "<|im_end|>"


@cache
def byte_tokenizer(
    chat_template: str | None = CHAT_TEMPLATE, *, begins_with_bos: bool = False, control: tuple[str, ...] = ()
) -> Tokenizer:
    """One token per byte, the pair "th", and the control tokens <|endoftext|>, <|im_start|>, <|im_end|> and `control`.

    Text begins with <|endoftext|> if `begins_with_bos`.
    """
    tokens = [*sorted(ByteLevel.alphabet()), "th", "<|endoftext|>", "<|im_start|>", EOS_TEXT, *control]
    kinds = [TokenKind.NORMAL] * 257 + [TokenKind.CONTROL] * (3 + len(control))
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": tokens.index(EOS_TEXT),
        "tokenizer.ggml.add_bos_token": begins_with_bos,
    }
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    return Tokenizer.from_gguf(metadata)


INFO = ModelInfo(
    name="fake-model",
    family="llama",
    vocab_size=260,
    max_context=512,
    max_prompt_tokens=511,
    storage="paged",
    dtype="float32",
    kv_dtype="f32",
    weights="full",
    created=1_700_000_000,
    hidden_size=4,
)

STATS = EngineStats(
    num_waiting=2,
    num_running=3,
    blocks=(BlockCounts(free=5, live=2, cached=1), BlockCounts(free=7, live=1, cached=0)),
    steps=11,
    step_seconds=HistogramCounts((0.01, 0.1), (4, 5, 2), 1.5),
    batch_size=HistogramCounts((1.0, 2.0), (6, 3, 2), 20.0),
    prompt_tokens=100,
    cached_prompt_tokens=32,
    generated_tokens=50,
    preemptions=1,
    forced_tokens=6,
    prefix=PrefixCounts(hits=4, misses=3, hit_tokens=32, evictions=2, rejects=1),
    routes=(RouteCount("fused_decode", "paged rows", 9), RouteCount("gather", "no compiled kernel", 2)),
    decode_steps=(DecodeSteps("replayed", 7), DecodeSteps("a row of several tokens", 3)),
    kv_bytes=4096,
    weight_bytes=8192,
)

VIEW = MachineView(
    maps=(
        GroupMap(
            8,
            16,
            1,
            (5, 2, 0, 1, 0),
            (("one",),),
            ((2, 1, 0, 1, 16, 1), (1, 3, -1, 1, 16, 1), (5, 0, -1, 0, 0, 0)),
        ),
        GroupMap(8, 16, 1, (7, 1, 0, 0, 0), (("one",),), ((1, 1, 0, 1, 5, 1), (7, 0, -1, 0, 0, 0))),
    ),
    requests=(RequestProgress("one", 0, "running", 0, 21, 21, 0, 3, 8, 0.5),),
    memory={"kv_bytes": 4096, "weight_bytes": 8192},
    group_kinds=("full", "sliding"),
    group_layers=(2, 1),
    group_windows=(None, 64),
)


@dataclass
class FakeEngine:
    """Says `reply` to everyone, then ends (`eos`) or goes on saying it until the length is reached (`endless`).

    Knobs: `step_s` between two tokens; `refusal` is raised before the first event; `fault` ends each request after
    `fault_after` tokens. What happened: `requests` that came, `aborted` ids, `drained` and `stopped`.
    """

    reply: str = "Hello there, world."
    endless: bool = False
    step_s: float = 0.0
    refusal: OctavoError | None = None
    fault: Fault | None = None
    fault_after: int = 2
    state: EngineState = "ready"
    reason: str = ""
    load_s: float = 0.0
    load_error: OctavoError | None = None
    fail_after_s: float | None = None
    model_info: ModelInfo = INFO
    model_tokenizer: Tokenizer = field(default_factory=byte_tokenizer)
    counted: EngineStats = STATS
    view: MachineView = VIEW
    inspect_s: float = 0.0
    inspect_took_s: float = 0.0
    num_inspected: int = 0
    requests: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    drained: list[float] = field(default_factory=list)
    stopped: bool = False
    profiling: ProfileSettings | None = None
    profile: Profile | None = None
    profile_error: str | None = None
    shut_down: bool = False
    num_running: int = 0

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(self.state, self.reason)

    @property
    def info(self) -> ModelInfo:
        self._check_loaded()
        return self.model_info

    @property
    def tokenizer(self) -> Tokenizer:
        self._check_loaded()
        return self.model_tokenizer

    @property
    def stats(self) -> EngineStats | None:
        return None if self.state == "loading" else self.counted

    def _check_loaded(self) -> None:
        if self.state == "loading":
            raise EngineFault("the model is not loaded")

    async def start(self) -> None:
        await asyncio.sleep(self.load_s)
        if self.load_error is not None:
            self.state, self.reason = "failed", str(self.load_error)
            raise self.load_error
        if self.state == "loading":
            self.state = "ready"
        if self.fail_after_s is not None:
            asyncio.get_running_loop().call_later(self.fail_after_s, self._fail)

    def _fail(self) -> None:
        self.state = "failed"

    async def run(self, requests: Sequence[Request]) -> AsyncGenerator[list[StepEvent]]:
        if self.state != "ready":
            ends = self.state in ("draining", "stopped")
            raise (ShuttingDown if ends else NotReady)(f"the engine is {self.state}")
        if self.refusal is not None:
            raise self.refusal
        self.requests += requests
        self.num_running += len(requests)
        scripts = {each.request_id: self._script(each) for each in requests}
        try:
            while scripts:
                await asyncio.sleep(self.step_s)
                if self.shut_down:
                    ended, scripts = list(scripts.values()), {}
                    yield [self._fault_event(script[0], "shut_down") for script in ended]
                    return
                events = [script.pop(0) for script in scripts.values()]
                scripts = {request_id: script for request_id, script in scripts.items() if script}
                yield events
        finally:
            self.aborted += scripts
            self.num_running -= len(requests)

    def _script(self, request: Request) -> list[StepEvent]:
        """All events of one request."""
        if request.pooling is not None:
            delta = TextDelta(request.request_id, request.choice, "", (), "length")
            return self._cut_by_fault([StepEvent(delta, embedding=self.vector(request))])
        params = request.params
        room = self.model_info.max_context - len(request.prompt_token_ids)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        ids = self.model_tokenizer.encode(self.reply, add_special_tokens=False, parse_special=True)
        ids = (
            (ids * (limit // len(ids) + 1))[:limit] if self.endless else [*ids, max(self.model_tokenizer.eos_token_ids)]
        )
        reason: FinishReason = "stop" if len(ids) <= limit and not self.endless else "length"
        ids = ids[:limit]
        detokenizer = self._detokenizer(params)
        ended = bool(ids) and ids[-1] in self.model_tokenizer.eos_token_ids
        shown_ids = ids[:-1] if ended else ids  # the text of the end is not shown
        whole = "".join([*map(detokenizer.push, shown_ids), detokenizer.finish()])
        text = whole[: min((at for stop in params.stop if (at := whole.find(stop)) >= 0), default=len(whole))]
        if text != whole:
            reason = "stop"
        detokenizer, spoken, events = self._detokenizer(params), 0, []
        for position, token_id in enumerate(ids):
            piece = detokenizer.push(token_id) if position < len(shown_ids) else ""
            if position == len(ids) - 1:
                piece += detokenizer.finish()
            shown = piece[: max(0, len(text) - spoken)]
            spoken += len(piece)
            last = position == len(ids) - 1 or (text != whole and spoken >= len(text))
            delta = TextDelta(request.request_id, request.choice, shown, (token_id,), reason if last else None)
            events.append(StepEvent(delta, logprobs=self._logprobs(token_id, params.logprobs)))
            if last:
                break
        if not events:
            events = [StepEvent(TextDelta(request.request_id, request.choice, "", (), "length"))]
        events = self._cut_by_fault(events)
        events[0] = replace(events[0], num_cached_tokens=0)
        if events[-1].fault is None:
            events[-1] = replace(events[-1], times=RequestTimes(1.0, 1.001, 1.002, 1.004))
        if params.prompt_logprobs is not None and request.choice == 0:
            scored = tuple(self._logprobs(each, params.prompt_logprobs) for each in request.prompt_token_ids[1:])
            events[0] = replace(events[0], prompt_logprobs=(None, *scored))
        return events

    @staticmethod
    def vector(request: Request) -> tuple[float, ...]:
        """Of length 1; which one tells the pooling, and the first value's sign whether the prompt is of even length."""
        sign = 1.0 if len(request.prompt_token_ids) % 2 else -1.0
        return (0.5 * sign, 0.5, 0.5, 0.5) if request.pooling == "mean" else (0.6 * sign, 0.8, 0.0, 0.0)

    def _detokenizer(self, params: SamplingParams) -> IncrementalDetokenizer:
        skip, shown = params.skip_special_tokens, params.shown_token_ids
        return self.model_tokenizer.detokenizer(skip_special_tokens=skip, shown_ids=shown)

    def _cut_by_fault(self, events: list[StepEvent]) -> list[StepEvent]:
        if self.fault is None:
            return events
        kept = events[: self.fault_after]
        return [*kept, self._fault_event(events[0], self.fault)]

    @staticmethod
    def _fault_event(event: StepEvent, fault: Fault) -> StepEvent:
        """The last event of the request of `event`."""
        delta = replace(event.delta, text="", token_ids=(), finish_reason="error")
        return StepEvent(delta, error=f"the request ended with {fault}", fault=fault)

    def _logprobs(self, token_id: int, k: int | None) -> TokenLogprobs | None:
        """-0.5 for the token itself, then its neighbours in the vocabulary."""
        if k is None:
            return None
        top = [(token_id, -0.5), *(((token_id + i) % self.model_info.vocab_size, -1.0 - i) for i in range(1, k))]
        return TokenLogprobs(token_id, -0.5, tuple(top[:k]))

    async def inspect(self) -> MachineSnapshot:
        if self.state not in ("ready", "draining"):
            raise NotReady(f"the engine is {self.state}")
        self.num_inspected += 1
        if self.inspect_s:
            await asyncio.sleep(self.inspect_s)
        return MachineSnapshot(self.num_inspected * 0.5, self.inspect_took_s, self.counted, self.view)

    async def reset_prefix_cache(self) -> int:
        if self.state not in ("ready", "draining"):
            raise NotReady(f"the engine is {self.state}")
        return sum(each.cached for each in self.counted.blocks)

    async def start_profile(self, settings: ProfileSettings) -> None:
        if self.profiling is not None:
            raise InvalidRequest("steps are being profiled already; stop that first")
        self.profiling = settings

    async def stop_profile(self) -> Profile | None:
        if self.profiling is not None:
            path = str(self.profiling.directory / "trace.json")
            self.profile = Profile(None, 3, self.profile_error) if self.profile_error else Profile(path, 3)
            self.profiling = None
        return self.profile

    async def drain(self, deadline_s: float) -> None:
        self.drained.append(deadline_s)
        self.state = "draining"
        end = asyncio.get_running_loop().time() + deadline_s
        while self.num_running and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.005)
        self.shut_down = True
        while self.num_running:
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self.stopped = True
        self.state = "stopped"
