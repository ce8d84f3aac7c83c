"""What a soak asks, and what an engine alone, without a prefix cache, answers to it. Knows no server.

Questions share beginnings, end by length, end token, stop string or stop token, are greedy or sampled with a seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.llm import LLM
from octavo.outputs import RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.server.logprobs import CompletionLogprobs

MAX_CONTEXT = 256
_STEM_TOKENS = (32, 48, 64, 80)
_WORDS = ("the", "harbour", "was", "quiet", "when", "boats", "returned", "with", "morning", "tide", "and", "numbers")
_GREEDY = {"temperature": 0.0}


@dataclass(frozen=True, slots=True)
class Expected:
    """One choice of the answer. `logprobs` as /v1/completions writes them, None where they are not asked for."""

    text: str
    finish_reason: str
    logprobs: dict[str, list[Any]] | None


@dataclass(frozen=True, slots=True)
class Question:
    """A request without the fields that change no answer (`stream`, `priority`, `cache_salt`)."""

    path: str
    body: dict[str, Any]
    choices: tuple[Expected, ...]
    prompt_tokens: int
    completion_tokens: int


class Examiner:
    """Draws questions and answers them with an engine that runs one sequence at a time."""

    def __init__(self, llm: LLM, seed: int) -> None:
        self._llm = llm
        self._draw = random.Random(seed)
        self._stems = [self._ids(length) for length in _STEM_TOKENS]

    def questions(self, count: int) -> list[Question]:
        """Some of them ask for several choices."""
        return [self._question() for _ in range(count)]

    def long_question(self, num_choices: int) -> Question:
        """Its choices run to 60 tokens each."""
        settings = {"temperature": 1.0, "seed": self._draw.randrange(1 << 40), "ignore_eos": True, "n": num_choices}
        return self._completion(self._ids(20), {**settings, "max_tokens": 60})

    def _question(self) -> Question:
        draw = self._draw
        settings = self._settings()
        if draw.random() < 0.2:
            return self._chat(" ".join(draw.choices(_WORDS, k=draw.randint(1, 20))), settings)
        stem = draw.choice(self._stems)
        shared = draw.choice((0, len(stem) // 2, len(stem), len(stem)))
        return self._completion([*stem[:shared], *self._ids(draw.randint(1, 40))], settings)

    def _settings(self) -> dict[str, Any]:
        """The request's fields beside its prompt; their names are those of `SamplingParams`, too."""
        draw = self._draw
        sampled = {
            "temperature": draw.choice((0.5, 1.0, 1.5)),
            "top_p": draw.choice((1.0, 0.9)),
            "top_k": draw.choice((0, 40)),
            "seed": draw.randrange(-(2**63), 2**64),
            "n": draw.choice((1, 1, 1, 2, 3)),
        }
        settings = sampled if draw.random() < 0.4 else dict(_GREEDY)
        settings["max_tokens"] = draw.choice((1, draw.randint(2, 16), draw.randint(10, 40), draw.randint(40, 140), 140))
        settings["ignore_eos"] = draw.random() < 0.7
        if draw.random() < 0.2:
            settings |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.2}
        return settings

    def _completion(self, ids: Sequence[int], settings: dict[str, Any]) -> Question:
        if self._draw.random() < 0.3:
            settings = {**settings, "logprobs": self._draw.randint(0, 4)}
        settings, output = self._with_stop(settings, lambda params: self._llm.generate([ids], params)[0])
        return self._written("/v1/completions", {"prompt": list(ids)}, settings, output)

    def _chat(self, text: str, settings: dict[str, Any]) -> Question:
        messages = [{"role": "user", "content": text}]
        settings, output = self._with_stop(settings, lambda params: self._llm.chat(messages, params)[0])
        return self._written("/v1/chat/completions", {"messages": messages}, settings, output)

    def _with_stop(self, settings: dict[str, Any], answer: Any) -> tuple[dict[str, Any], RequestOutput]:
        """Settings and answer; for some of them with a stop that the answer without one would have passed."""
        output: RequestOutput = answer(SamplingParams(**settings))
        whole = output.outputs[-1]
        kind = self._draw.choice(("none", "none", "text", "token"))
        if kind == "none" or len(whole.token_ids) < 4 or len(whole.text) < 4:
            return settings, output
        if kind == "token":
            settings = {**settings, "stop_token_ids": [whole.token_ids[len(whole.token_ids) // 2]]}
        else:
            start = self._draw.randrange(len(whole.text) - 2)
            settings = {**settings, "stop": [whole.text[start : start + 3], "never said"]}
        return settings, answer(SamplingParams(**settings))

    def _written(self, path: str, prompt: dict[str, Any], settings: dict[str, Any], output: RequestOutput) -> Question:
        choices = []
        for choice in output.outputs:
            logprobs = None
            if choice.logprobs is not None:
                scored = [(each.token_id, each) for each in choice.logprobs]
                logprobs = CompletionLogprobs(self._llm.tokenizer, (), "").entries(scored)
            choices.append(Expected(choice.text, choice.finish_reason, logprobs))
        body = {**prompt, **settings}
        return Question(path, body, tuple(choices), output.usage.prompt_tokens, output.usage.completion_tokens)

    def _ids(self, count: int) -> list[int]:
        return [self._draw.randrange(3, 380) for _ in range(count)]
