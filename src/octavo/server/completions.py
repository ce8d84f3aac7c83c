"""/v1/completions: from a request to the generation that answers it, and the JSON of its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from json.encoder import encode_basestring_ascii
from typing import Any

from octavo.errors import OctavoError
from octavo.server.answer_frame import AnswerFrame
from octavo.server.fill_in import required_fill_in
from octavo.server.fingerprint import system_fingerprint
from octavo.server.generation import CallUsage, ChoiceDelta, Generation, Prompt
from octavo.server.logprobs import CompletionLogprobs
from octavo.server.prompts import check_counts, check_prompts, completion_prompts
from octavo.server.protocol.completions import UNSUPPORTED_IN_COMPLETIONS, CompletionRequest
from octavo.server.protocol.parsing import parse
from octavo.server.state import ServerState
from octavo.server.streaming import GenerationResponse
from octavo.tokenizer import Tokenizer


async def answer_completion(state: ServerState, body: dict[str, Any]) -> GenerationResponse:
    """The answer to the request that `body` is. Raises an `OctavoError` for one that cannot be served."""
    request = parse(CompletionRequest, body, UNSUPPORTED_IN_COMPLETIONS)
    request.check()
    model = state.check_model(request.model)
    info, tokenizer = state.ready_model()
    check_counts(state.settings, len(request.prompts), request.num_choices)
    params = request.sampling_params(info.vocab_size, request.max_tokens, request.logprobs, request.num_prompt_logprobs)
    fill_in = required_fill_in(tokenizer) if request.suffix else None
    if fill_in is not None and not params.ignore_eos:
        params = replace(params, stop_token_ids=(*params.stop_token_ids, *fill_in.ends))
    prompts = await completion_prompts(tokenizer, request, info, fill_in)
    check_prompts([each.token_ids for each in prompts], info, "prompt", generates=request.max_tokens != 0)
    generation = Generation(
        state,
        prompts,
        params,
        kind="cmpl",
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
    )
    frame = AnswerFrame(
        generation,
        model,
        system_fingerprint(info),
        whole_kind="text_completion",
        chunk_kind="text_completion",
        with_usage=request.streams_usage,
    )
    answer = CompletionAnswer(
        frame, tokenizer, prompts, request.num_choices, with_logprobs=request.logprobs is not None
    )
    return GenerationResponse(generation, answer, stream=bool(request.stream), keep_alive_s=state.settings.keep_alive_s)


class CompletionAnswer:
    """Writes text completions and their chunks, which look alike."""

    def __init__(
        self, frame: AnswerFrame, tokenizer: Tokenizer, prompts: Sequence[Prompt], n: int, *, with_logprobs: bool
    ) -> None:
        """Each of `prompts` has `n` choices."""
        self._frame = frame
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._n = n
        self._with_logprobs = with_logprobs
        self._scores: dict[int, CompletionLogprobs] = {}  # by choice

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """One chunk for each delta that says something."""
        written: list[str] = []
        for delta in deltas:
            if not (delta.text or delta.scored or delta.finish_reason):
                continue
            reason = "null" if delta.finish_reason is None else f'"{delta.finish_reason}"'
            logprobs = json.dumps(self._entries(delta)) if self._with_logprobs else "null"
            written.append(
                self._frame.chunk(
                    f'{{"index":{delta.index},"text":{encode_basestring_ascii(delta.text)},'
                    f'"logprobs":{logprobs},"finish_reason":{reason}}}'
                )
            )
        return "".join(written).encode("ascii")

    def _entries(self, delta: ChoiceDelta) -> dict[str, Any]:
        scores = self._scores.get(delta.index)
        if scores is None:
            prompt = self._prompts[delta.index // self._n]
            echoed = () if prompt.echo is None else prompt.token_ids
            scores = self._scores[delta.index] = CompletionLogprobs(self._tokenizer, echoed, prompt.echo or "")
        return scores.entries(delta.scored)

    def ending(self, usage: CallUsage) -> bytes:
        return self._frame.ending(usage)

    def failure(self, error: OctavoError) -> bytes:
        return self._frame.failure(error)

    def whole(self, choices: Sequence[ChoiceDelta], usage: CallUsage) -> bytes:
        told = [
            {
                "index": choice.index,
                "text": choice.text,
                "logprobs": self._entries(choice) if self._with_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return self._frame.whole(told, usage)
