"""The offline API: prompts in, finished texts out, or a stream of pieces. Synchronous."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.client import EngineClient, InProcessClient
from octavo.engine.core import EngineCore
from octavo.engine.events import RequestTimes, StepEvent
from octavo.engine.hand_off import NO_HAND_OFF, HandOff
from octavo.engine.loaded_model import Progress, load_model, plan_model
from octavo.errors import EngineFault, InvalidRequest, shown
from octavo.outputs import (
    Completion,
    EmbeddingOutput,
    FinishReason,
    RequestOutput,
    TextDelta,
    Timings,
    TokenLogprobs,
    Usage,
    shortened,
)
from octavo.request import POOLINGS, Pooling, Request
from octavo.sampling_params import SamplingParams
from octavo.storage.snapshot import KVSnapshot
from octavo.store import SilentProgress, resolve_model
from octavo.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(slots=True)
class _Choice:
    """A choice as it grows."""

    index: int
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    times: RequestTimes | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None

    def take(self, event: StepEvent) -> None:
        if event.fault == "invalid_grammar":
            raise InvalidRequest(event.error or "the grammar cannot be used")
        if event.error is not None:
            raise EngineFault(f"request {event.delta.request_id} failed: {event.error}")
        self.pieces.append(event.delta.text)
        self.token_ids.extend(event.delta.token_ids)
        if event.logprobs is not None:
            self.logprobs.append(event.logprobs)
        if event.num_cached_tokens is not None:
            self.num_cached_tokens = event.num_cached_tokens
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        self.finish_reason, self.times = event.delta.finish_reason, event.times

    def completion(self, params: SamplingParams) -> Completion:
        assert self.finish_reason is not None
        logprobs = None if params.logprobs is None else tuple(self.logprobs)
        return Completion(self.index, "".join(self.pieces), tuple(self.token_ids), self.finish_reason, logprobs)


class LLM:
    """A loaded model. `generate` and `chat` run all their prompts as one continuously batched set.

        llm = LLM("smollm2")
        print(llm.generate("The capital of France is", SamplingParams(max_tokens=8))[0].outputs[0].text)

    `model` is a `.gguf` file, a Hugging Face or MLX directory, an alias, or `repo[:quant]` on the Hugging Face hub;
    keyword arguments are the fields of `EngineConfig`. Raises `LoadError`, `CapacityError` or `InvalidRequest`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        progress: Progress = lambda done, total: None,
        **settings: Any,
    ) -> None:
        config = engine_config(settings)
        path = resolve_model(None if model is None else str(model), progress=SilentProgress())
        loaded = load_model(plan_model(path, config), config, progress)
        self._attach(EngineCore(loaded, config))

    @classmethod
    def over(cls, core: EngineCore) -> LLM:
        """The same API over an engine that exists already."""
        llm = cls.__new__(cls)
        llm._attach(core)
        return llm

    def _attach(self, core: EngineCore) -> None:
        self.core = core
        self.loaded = core.loaded
        self._client: EngineClient = InProcessClient(core)
        self._ids = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and output together, that a request may have."""
        return self.core.max_context

    def encode(self, prompt: Prompt, *, parse_special: bool = False) -> tuple[int, ...]:
        """Token ids of a text; ids pass through as they are. Raises `InvalidRequest` for anything else."""
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt, parse_special=parse_special))
        if not _is_list(prompt):
            raise InvalidRequest(f"a prompt is {shown(prompt)}; give text or a list of token ids")
        for token_id in prompt:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise InvalidRequest(
                    f"the prompt has {shown(token_id)} among its token ids; give text or whole numbers"
                )
        return tuple(prompt)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        parse_special: bool = False,
        snapshot: KVSnapshot | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt (a text or a list of token ids); results come in the order of the prompts.

        A single prompt may be given bare. `snapshot` is K/V of tokens that every prompt begins with.
        Raises `InvalidRequest` or `CapacityError` before anything runs if one of them cannot be served, `EngineFault`
        if the model itself fails on one.
        """
        encoded = [self.encode(prompt, parse_special=parse_special) for prompt in _as_list(prompts)]
        return self._run(encoded, _per_prompt(params, len(encoded)), HandOff(start=snapshot))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer each conversation through the model's chat template; one conversation may be given bare."""
        conversations = _conversations(messages)
        encoded = [tuple(self.tokenizer.encode_chat(each, **template_kwargs)) for each in conversations]
        return self._run(encoded, _per_prompt(params, len(encoded)))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "mean",
        dimensions: int | None = None,
    ) -> list[EmbeddingOutput]:
        """A vector of each prompt, of length 1, from its tokens' hidden states after the last norm: their mean, or that
        of the last token.

        A text is encoded as for `generate`, with the model's own first token if it has one and no end. With
        `dimensions` only so many of the first values are given, scaled to length 1. Raises what `generate` does.
        """
        if pooling not in POOLINGS:
            raise InvalidRequest(f"pooling is {shown(pooling)}; give one of {', '.join(POOLINGS)}")
        hidden_size = self.loaded.plan.config.hidden_size
        if dimensions is not None and not 1 <= dimensions <= hidden_size:
            raise InvalidRequest(f"dimensions is {shown(dimensions)}; this model's embeddings have 1 to {hidden_size}")
        params = SamplingParams(max_tokens=1)
        requests = [
            Request(f"{next(self._ids)}-0", self.encode(prompt), params, seed=0, pooling=pooling)
            for prompt in _as_list(prompts)
        ]
        found: dict[str, tuple[float, ...]] = {}
        with closing(self._client.run(requests)) as events:
            for event in events:
                _Choice(0).take(event)
                if event.embedding is not None:
                    found[event.delta.request_id] = shortened(event.embedding, dimensions)
        return [EmbeddingOutput(each.prompt_token_ids, found[each.request_id]) for each in requests]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
        snapshot: KVSnapshot | None = None,
        on_snapshot: Callable[[KVSnapshot], object] | None = None,
    ) -> Iterator[TextDelta | RequestOutput]:
        """Pieces of one prompt's single choice as they come, and last its `RequestOutput`.

        `snapshot` is K/V of tokens that the prompt begins with. `on_snapshot` gets, after the last piece, the K/V of
        prompt and output but for the last token, whose K/V was never computed.
        Several streams may be taken in turns. Closing one, or leaving it, ends its request.
        """
        params = _per_prompt(params, 1)[0]
        if params.n != 1:
            raise InvalidRequest(f"n is {params.n}; a stream has one choice")
        before = self.core.runner.cache.routes.by_route()
        request = self._requests(self.encode(prompt, parse_special=parse_special), params)[0]
        choice = _Choice(0)
        hand_off = HandOff(start=snapshot, export=on_snapshot is not None)
        with closing(self._client.run([request], hand_off)) as events:
            for event in events:
                choice.take(event)
                yield event.delta
                if event.snapshot is not None and on_snapshot is not None:
                    on_snapshot(event.snapshot)
        yield self._output(request.request_id, request.prompt_token_ids, params, [choice], before)

    def _run(
        self, prompts: list[tuple[int, ...]], params: list[SamplingParams], hand_off: HandOff = NO_HAND_OFF
    ) -> list[RequestOutput]:
        before = self.core.runner.cache.routes.by_route()
        requests = [self._requests(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
        choices = {r.request_id: _Choice(r.choice) for group in requests for r in group}
        with closing(self._client.run([request for group in requests for request in group], hand_off)) as events:
            for event in events:
                choices[event.delta.request_id].take(event)
        return [
            self._output(
                group[0].request_id,
                group[0].prompt_token_ids,
                each,
                [choices[r.request_id] for r in group],
                before,
            )
            for group, each in zip(requests, params, strict=True)
        ]

    def _requests(self, prompt: tuple[int, ...], params: SamplingParams) -> list[Request]:
        number = next(self._ids)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return [Request(f"{number}-{choice}", prompt, params, seed, choice) for choice in range(params.n)]

    def _output(
        self,
        request_id: str,
        prompt: tuple[int, ...],
        params: SamplingParams,
        choices: list[_Choice],
        routes_before: Mapping[str, int],
    ) -> RequestOutput:
        completions = tuple(choice.completion(params) for choice in choices)
        routes = self.core.runner.cache.routes.by_route()
        taken = {name: count - routes_before.get(name, 0) for name, count in routes.items()}
        times = [choice.times for choice in choices if choice.times is not None]
        cached = min(choice.num_cached_tokens for choice in choices)
        return RequestOutput(
            request_id=request_id.split("-")[0],
            prompt_token_ids=prompt,
            outputs=completions,
            usage=Usage(len(prompt), sum(len(c.token_ids) for c in completions), cached),
            timings=_timings(self.loaded.load_s, len(prompt) - cached, completions, times),
            storage=self.core.storage.value,
            routes={name: count for name, count in taken.items() if count},
            prompt_logprobs=choices[0].prompt_logprobs,
        )


def engine_config(settings: Mapping[str, Any]) -> EngineConfig:
    """`EngineConfig` from keyword arguments. Raises `InvalidRequest` naming an unknown one."""
    known = EngineConfig.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise InvalidRequest(f"setting {shown(name)} is unknown; known are {', '.join(known)}")
    return EngineConfig(**settings)


def _timings(
    load_s: float, num_prefilled: int, completions: Sequence[Completion], times: Sequence[RequestTimes]
) -> Timings:
    """The slowest choice's times; decode speed counts tokens after the first of each choice."""
    prefill_s = max(each.prefill_s for each in times)
    decode_s = max(each.decode_s for each in times)
    decoded = sum(max(0, len(each.token_ids) - 1) for each in completions)
    return Timings(
        load_s=load_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        prefill_tps=num_prefilled / prefill_s if prefill_s > 0 else 0.0,
        decode_tps=decoded / decode_s if decode_s > 0 else 0.0,
    )


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not _is_list(prompts):
        raise InvalidRequest(f"prompts are {shown(prompts)}; give text, a list of token ids, or a list of these")
    if prompts and not any(isinstance(each, str) or _is_list(each) for each in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if not _is_list(messages):
        raise InvalidRequest(f"messages are {shown(messages)}; give a list of messages, or a list of such lists")
    if not messages or isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]


def _per_prompt(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if not _is_list(params) or not all(isinstance(each, SamplingParams) for each in params):
        raise InvalidRequest(f"sampling params are {shown(params)}; give SamplingParams, or a list of them")
    if len(params) != count:
        raise InvalidRequest(f"{len(params)} sampling params for {count} prompts; give one, or one for each")
    return list(params)
