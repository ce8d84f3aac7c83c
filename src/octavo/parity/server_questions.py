"""What the server arms ask and what they must be told: texts, tokens and log-probabilities of engines without a server.

An answer's tokens come with the log-probabilities that the HTTP API tells, in its own words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import LoadedModel, share_weights
from octavo.llm import LLM
from octavo.outputs import RequestOutput
from octavo.parity.trace import Trace
from octavo.sampling_params import SamplingParams
from octavo.server.logprobs import CompletionLogprobs
from octavo.step_batch import StorageKind
from octavo.tokenizer import Tokenizer

NUM_ALTERNATIVES = 5
_NO_TOKEN = -1  # for a token that is spelled like none that was expected there


@dataclass(slots=True)
class Answer:
    """One choice of a text completion: `logprobs` as the API writes it, `problem` if there is no whole answer."""

    text: str = ""
    logprobs: dict[str, list[Any]] = field(
        default_factory=lambda: {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    )
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    problem: str | None = None

    def add(self, choice: Mapping[str, Any]) -> None:
        """A whole choice, or the next chunk of one."""
        self.text += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            self.logprobs[name] += values
        self.finish_reason = choice["finish_reason"] or self.finish_reason


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, how it is to be continued, and what an engine alone answers: token ids, text and log-probabilities."""

    name: str
    prompt: str
    params: SamplingParams
    streamed: bool
    token_ids: tuple[int, ...]
    expected: Answer

    def body(self) -> dict[str, object]:
        """The request's JSON."""
        params = self.params
        options = {"stream_options": {"include_usage": True}} if self.streamed else {}
        return {
            "prompt": self.prompt,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": params.seed,
            "ignore_eos": params.ignore_eos,
            "logprobs": params.logprobs,
            "stream": self.streamed,
            **options,
        }

    def reference(self) -> Trace:
        """What was expected, as a trace."""
        return Trace(list(self.token_ids), [_row(self.expected, step, self.expected) for step in self._steps()])

    def trace(self, answer: Answer, routes: Mapping[str, int], *, bitwise: bool) -> Trace:
        """`answer` as a trace, to be compared with `reference`. Its logits are log-probabilities of what that names."""
        expected, spelled = self.expected, answer.logprobs["tokens"]
        named = dict(zip(expected.logprobs["tokens"], self.token_ids, strict=True))
        ids = [named.get(token, _NO_TOKEN) for token in spelled]
        for step, token in enumerate(expected.logprobs["tokens"][: len(ids)]):
            if token == spelled[step]:  # also where two tokens are spelled alike
                ids[step] = self.token_ids[step]
        rows = [_row(answer, step, expected) for step in self._steps() if step < len(spelled)]
        return Trace(ids, rows, routes, self._problem(answer, ids, bitwise=bitwise))

    def _steps(self) -> range:
        return range(len(self.token_ids))

    def _problem(self, answer: Answer, ids: Sequence[int], *, bitwise: bool) -> str | None:
        """What is wrong beyond tokens and numbers."""
        if answer.problem is not None:
            return answer.problem
        if answer.prompt_tokens != self.expected.prompt_tokens:
            return f"counted {answer.prompt_tokens} tokens in the prompt, not {self.expected.prompt_tokens}"
        if tuple(ids) != self.token_ids:
            return None  # which is for the comparison to judge
        for name in ("text", "finish_reason"):
            if getattr(answer, name) != getattr(self.expected, name):
                return f"gave the same tokens, but another {name.replace('_', ' ')}"
        if bitwise and answer.logprobs != self.expected.logprobs:
            return "gave the same tokens, but other log-probabilities"
        return None


def ask_alone(
    loaded: LoadedModel,
    config: EngineConfig,
    prompts: Sequence[str],
    num_tokens: int,
    *,
    sampled: bool,
) -> list[Question]:
    """Each prompt streamed and whole, greedy and, if `sampled`, with a seed. Answered here by an engine that is dense.

    It answers one question after another, and knows no prefixes.
    """
    config = replace(config, max_num_seqs=1, prefix_cache=False)
    shared = share_weights(loaded, config, StorageDecision(StorageKind.DENSE, "a parity arm"))
    llm = LLM.over(EngineCore(shared, config))
    greedy = SamplingParams(max_tokens=num_tokens, ignore_eos=True, logprobs=NUM_ALTERNATIVES)
    ways = {"greedy": greedy}
    if sampled:
        ways["seeded"] = replace(greedy, temperature=1.5, top_p=0.95, seed=20_000)
    questions = []
    for prompt in prompts:
        for way, params in ways.items():
            output = llm.generate([loaded.tokenizer.encode(prompt)], params)[0]
            expected = _expected(loaded.tokenizer, output)
            name = f"a prompt of {len(output.prompt_token_ids)} tokens, {way}"
            questions += [
                Question(f"{name}, {front}", prompt, params, front == "streamed", output.outputs[0].token_ids, expected)
                for front in ("whole", "streamed")
            ]
    return questions


def _expected(tokenizer: Tokenizer, output: RequestOutput) -> Answer:
    """What a server has to say of the single choice of `output`, which has log-probabilities."""
    choice = output.outputs[0]
    assert choice.logprobs is not None
    entries = CompletionLogprobs(tokenizer, (), "").entries([(each.token_id, each) for each in choice.logprobs])
    return Answer(choice.text, entries, choice.finish_reason, output.usage.prompt_tokens)


def _row(answer: Answer, step: int, expected: Answer) -> torch.Tensor:
    """Log-probabilities of the alternatives that are expected at `step`, float64; NaN-free, so that they compare."""
    found = answer.logprobs["top_logprobs"][step]
    return torch.tensor(
        [found.get(name, -math.inf) for name in expected.logprobs["top_logprobs"][step]], dtype=torch.float64
    )
