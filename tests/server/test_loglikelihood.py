"""Scores of texts over HTTP, as evaluation harnesses ask for them, are the offline API's to the last bit.

A harness sends a text and its continuation with echo, logprobs and no tokens to generate, adds up the log-probabilities
of the continuation, and asks whether each of its tokens is the likeliest one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_calls import events_of
from server_process import octavo_serve

from octavo.llm import LLM
from octavo.outputs import TokenLogprobs
from octavo.sampling_params import SamplingParams
from octavo.server.logprobs import token_string
from tests.conftest import weights_path
from tests.tiny_models import save_hf

NUM_TOP = 3
SCORE: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": NUM_TOP}
NUMBERS = tuple(range(3, 300))


def ids(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length} {seed}").choices(NUMBERS, k=length)


@dataclass(frozen=True)
class Scorers:
    """The same model behind a server, and in this process."""

    client: httpx.Client
    llm: LLM

    def post(self, **fields: Any) -> dict[str, Any]:
        answer = self.client.post("/v1/completions", json=fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def score(self, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
        """The log-probabilities of each choice."""
        return [choice["logprobs"] for choice in self.post(prompt=prompt, **{**SCORE, **fields})["choices"]]

    def offline(self, prompt: str | Sequence[int]) -> dict[str, Any]:
        """What the server ought to say of `prompt`, but for the places in the text."""
        output = self.llm.generate(prompt, SamplingParams(max_tokens=0, prompt_logprobs=NUM_TOP))[0]
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        scores = output.prompt_logprobs
        return {
            "tokens": [token_string(self.llm.tokenizer, each) for each in output.prompt_token_ids],
            "token_logprobs": [None if each is None else each.logprob for each in scores],
            "top_logprobs": [None if each is None else self._named(each) for each in scores],
        }

    def _named(self, entry: TokenLogprobs) -> dict[str, float]:
        named: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            named.setdefault(token_string(self.llm.tokenizer, token_id), logprob)
        return named

    def assert_agree(self, prompt: str | Sequence[int], found: dict[str, Any]) -> None:
        assert {name: found[name] for name in found if name != "text_offset"} == self.offline(prompt)

    def forget(self) -> None:
        """Cached prefixes, those that no running request uses."""
        assert self.client.post("/v1/cache/reset").status_code == 200


@contextmanager
def scorers(path: Path, *flags: object, **settings: Any) -> Iterator[Scorers]:
    # In bfloat16 scores are exact; `auto` is float32 on some processors.
    with octavo_serve("-m", path, "--dtype", "bfloat16", *flags) as server, server.client() as client:
        server.wait_until_ready()
        yield Scorers(client, LLM(path, threads=1, prefix_cache=False, dtype="bfloat16", **settings))


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scorers]:
    path = tmp_path_factory.mktemp("scored") / "tiny"
    save_hf(path, request.param)
    with scorers(path) as both:
        yield both


def test_scores_are_those_of_the_offline_api_for_texts_and_ids(tiny: Scorers) -> None:
    text = "The harbour was quiet when the smallest of the three lanterns shone; Grüße aus Köln 🚀"
    prompts: list[Any] = [text, ids(40), ids(2)]
    for prompt in prompts:
        found = tiny.score(prompt)
        assert len(found) == 1
        tiny.assert_agree(prompt, found[0])
    assert tiny.score([text, text[:20]]) == tiny.score(text) + tiny.score(text[:20])


def test_a_token_alone_has_nothing_to_be_scored_by(tiny: Scorers) -> None:
    found = tiny.score([5])[0]
    assert found["token_logprobs"] == [None] and found["top_logprobs"] == [None]


def test_a_stream_and_every_choice_tell_the_same_scores(tiny: Scorers) -> None:
    prompt = ids(50)
    assert tiny.score(prompt, n=2) == tiny.score(prompt) * 2
    answer = tiny.client.post("/v1/completions", json={"prompt": prompt, "stream": True, **SCORE})
    *chunks, done = events_of(answer.content)
    assert done == "[DONE]"
    joined: dict[str, list[Any]] = {}
    for entries in (choice["logprobs"] for chunk in chunks for choice in chunk["choices"]):
        for name, items in (entries or {}).items():
            joined.setdefault(name, []).extend(items)
    assert [joined] == tiny.score(prompt)


def test_scores_of_what_was_generated_are_those_that_generating_told(tiny: Scorers) -> None:
    prompt = ids(30)
    fields = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": NUM_TOP}
    offline = tiny.llm.generate(prompt, SamplingParams(max_tokens=24, ignore_eos=True, logprobs=NUM_TOP))[0].outputs[0]
    told = tiny.post(prompt=prompt, **fields)["choices"][0]["logprobs"]
    assert told["token_logprobs"] == [each.logprob for each in offline.logprobs or ()]
    scored = tiny.score([*prompt, *offline.token_ids])[0]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert scored[name][len(prompt) :] == told[name]
    # Greedy: each is the likeliest of its place, as harnesses look for it.
    tops = scored["top_logprobs"][len(prompt) :]
    assert all(
        logprob == max(top.values()) for logprob, top in zip(scored["token_logprobs"][len(prompt) :], tops, strict=True)
    )


def test_r024_scores_are_complete_and_the_same_after_the_prompt_was_cached(tiny: Scorers) -> None:
    prompt = ids(120)
    tiny.forget()
    cold = tiny.score(prompt)[0]
    assert len(cold["token_logprobs"]) == 120
    tiny.assert_agree(prompt, cold)
    tiny.forget()
    again: list[int] = []
    for _ in range(2):
        answer = tiny.post(prompt=prompt, temperature=0, max_tokens=4, ignore_eos=True, logprobs=NUM_TOP)
        again.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert again[0] == 0 and again[1] >= 96  # there is something to hit
    assert tiny.score(prompt) == [cold]
    hit = tiny.post(prompt=prompt, temperature=0, max_tokens=4, ignore_eos=True, logprobs=NUM_TOP)["choices"]
    tiny.forget()
    miss = tiny.post(prompt=prompt, temperature=0, max_tokens=4, ignore_eos=True, logprobs=NUM_TOP)["choices"]
    assert hit == miss


def test_r024_overlapping_prompts_have_their_scores_in_either_order(tiny: Scorers) -> None:
    one = ids(120)
    other = one[:70] + ids(50, seed=9)
    for order in ([one, other], [other, one]):
        for together in (True, False):
            tiny.forget()
            found = tiny.score(order) if together else [tiny.score(each)[0] for each in order]
            for prompt, scores in zip(order, found, strict=True):
                tiny.assert_agree(prompt, scores)
            mixed = tiny.score(order[0], max_tokens=6, temperature=0, ignore_eos=True)[0]
            assert mixed["token_logprobs"][:120] == found[0]["token_logprobs"]


def test_scores_are_the_same_beside_other_requests(tiny: Scorers) -> None:
    stop = threading.Event()

    def noise(seed: int) -> None:
        while not stop.is_set():
            tiny.post(prompt=ids(60, seed), max_tokens=16, temperature=1.2, n=2)

    threads = [threading.Thread(target=noise, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        for length in (17, 64, 120):
            tiny.assert_agree(ids(length), tiny.score(ids(length))[0])
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.weights
@pytest.mark.nightly
def test_a_real_model_scores_continuations_as_the_offline_api_does() -> None:
    context = "Question: What is the capital of France?\nAnswer:"
    continuations = [" Paris", " London", " a small town in the south of Germany"]
    with scorers(weights_path("smollm2")) as both:
        likelihoods = []
        for continuation in continuations * 2:  # the second time their beginning is cached
            found = both.score(context + continuation)[0]
            both.assert_agree(context + continuation, found)
            begins = found["text_offset"].index(len(context))
            likelihoods.append(sum(found["token_logprobs"][begins:]))
        assert likelihoods[:3] == likelihoods[3:]
        assert max(likelihoods) == likelihoods[0]  # Paris it is
        together = both.score([context + each for each in continuations])
        assert [
            sum(each["token_logprobs"][each["text_offset"].index(len(context)) :]) for each in together
        ] == likelihoods[:3]
