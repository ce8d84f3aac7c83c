"""Prompts of exact length: by token ids, by a tokenizer at hand, or by what the endpoint counts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.bench.load_connection import Address
from octavo.bench.load_endpoint import Api, EndpointControl
from octavo.bench.load_prompts import PromptSource, TextPrompts, TokenIdPrompts, calibrate, prompt_source
from octavo.errors import InvalidRequest
from octavo.models.loaders import open_checkpoint
from octavo.tokenizer import Tokenizer
from tests.bench.stub_endpoint import StubEndpoint, serving_stub
from tests.tiny_models import save_hf


def source_for(
    stub: StubEndpoint, tokenizer: Tokenizer | None = None, api: Api | None = None, lengths: tuple[int, ...] = (20,)
) -> PromptSource:
    async def run() -> PromptSource:
        async with EndpointControl(Address.of(stub.url)) as control:
            return await prompt_source(control, await control.find(None, api), tokenizer, lengths)

    return asyncio.run(run())


def calibrated(count: Callable[[str], int | None], *lengths: int) -> TextPrompts:
    async def counter(text: str) -> int | None:
        return count(text)

    return asyncio.run(calibrate(counter, lengths, "a test"))


def draws(source: PromptSource, length: int, shared: int = 0, times: int = 20) -> list[str | list[int]]:
    draw = random.Random(5)
    return [source.prompt(length, draw, shared) for _ in range(times)]


def test_an_endpoint_with_a_tokenizer_gets_its_own_token_ids():
    with serving_stub() as stub:
        source = source_for(stub)
    assert source.how == "token ids from the endpoint's /tokenize"
    prompts = draws(source, 20)
    assert all(isinstance(each, list) and len(each) == 20 for each in prompts)
    assert len({tuple(each) for each in prompts}) == 20
    assert all(100 not in each for each in prompts), "the first token may be a begin-of-text"


def test_an_endpoint_that_puts_tokens_before_ids_gets_text():
    with serving_stub(ids_overhead=1, overhead=2) as stub:
        source = source_for(stub)
        assert source.how == "text, counted by the endpoint's usage.prompt_tokens"
        assert {2 + len(str(each).split()) for each in draws(source, 20)} == {20}


@pytest.mark.parametrize(("cost", "overhead"), [(1, 0), (1, 11), (3, 2), (7, 0)])
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_text_is_adjusted_until_the_endpoint_counts_exactly(cost, overhead, api):
    with serving_stub(takes_ids=False, has_tokenize=False, cost=cost, overhead=overhead) as stub:
        source = source_for(stub, api=api, lengths=(64, 65, 66))
        for length in (64, 65, 66):
            prompts = draws(source, length)
            assert len(set(map(str, prompts))) > 1
            assert {StubCount(cost, overhead)(str(each)) for each in prompts} == {length}


class StubCount:
    """How the stub counts text."""

    def __init__(self, cost: int, overhead: int) -> None:
        self._cost, self._overhead = cost, overhead

    def __call__(self, text: str) -> int:
        return self._overhead + len(text.replace("!", "").split()) * self._cost + text.count("!")


def test_a_tokenizer_at_hand_counts_what_an_endpoint_without_usage_does_not(tmp_path: Path):
    save_hf(tmp_path / "llama", "llama", num_hidden_layers=1)
    tokenizer = open_checkpoint(tmp_path / "llama").tokenizer()
    with serving_stub(takes_ids=False, has_tokenize=False, gives_usage=False) as stub:
        source = source_for(stub, tokenizer, lengths=(300,))
    assert source.how == "text, counted by the given tokenizer"
    assert {len(tokenizer.encode(str(each))) for each in draws(source, 300)} == {300}


def test_a_tokenizer_at_hand_makes_ids_where_they_are_taken(tmp_path: Path):
    save_hf(tmp_path / "llama", "llama", num_hidden_layers=1)
    tokenizer = open_checkpoint(tmp_path / "llama").tokenizer()
    with serving_stub(has_tokenize=False) as stub:
        source = source_for(stub, tokenizer)
    assert source.how == "token ids from the given tokenizer"


def test_an_endpoint_that_counts_nothing_needs_a_tokenizer():
    with (
        serving_stub(takes_ids=False, has_tokenize=False, gives_usage=False) as stub,
        pytest.raises(InvalidRequest, match="does not say how long a prompt is; give --tokenizer MODEL"),
    ):
        source_for(stub)


def test_a_prompt_shorter_than_what_the_endpoint_adds_is_refused_with_both_numbers():
    with (
        serving_stub(takes_ids=False, has_tokenize=False, overhead=30) as stub,
        pytest.raises(InvalidRequest, match=r"a prompt of 20 tokens: the shortest has 31, .* raise --prompt-tokens"),
    ):
        source_for(stub)


def test_counts_that_follow_no_rule_are_refused_after_a_few_tries():
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return len(text.split()) + (len(asked) - 2 if len(asked) > 2 else 0)  # drifts once the words are measured

    with pytest.raises(
        InvalidRequest, match=r"no prompt of exactly 99 tokens was found: a test counts 100; .*--tokenizer"
    ):
        calibrated(count, *range(60, 100))
    assert len(asked) < 100


def test_a_count_that_rises_with_length_alone_is_found_out():
    with pytest.raises(InvalidRequest, match=r"a prompt of 30 tokens comes out as 29 by a test"):
        calibrated(lambda text: len(text.split()) + (len(text.split()) > 60), 30, 90)


def test_words_without_a_common_length_are_refused():
    costs = iter(range(1, 1000))
    with pytest.raises(InvalidRequest, match="no two words of one length"):
        calibrated(lambda text: next(costs) ** 2, 20)


@pytest.mark.parametrize("shared", [0, 10, 20])
def test_ids_have_exactly_the_common_beginning_that_was_asked_for(shared):
    prompts = draws(TokenIdPrompts(range(1000), "a test"), 40, shared)
    same = [len(set(column)) == 1 for column in zip(*prompts, strict=True)]
    assert same[:shared] == [True] * shared
    assert not any(same[shared:])


def test_text_has_a_common_beginning_no_longer_than_asked_for():
    source = TextPrompts([f"w{index}" for index in range(500)], 1, 4, None, "a test")
    columns = list(zip(*(str(each).split() for each in draws(source, 44, 24)), strict=True))
    same = [len(set(column)) == 1 for column in columns]
    assert same == [True] * 21 + [False] * 20  # the opening and 20 words; 4 tokens are the endpoint's own
