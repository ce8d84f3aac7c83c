"""Log-probabilities in both APIs: OpenAI's shapes, true bytes, places in the text, and nothing that JSON cannot say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from api_calls import CHAT, COMPLETIONS, HI, streamed, whole
from fake_engine import FakeEngine, byte_tokenizer

from octavo.outputs import TokenLogprobs
from octavo.server.logprobs import LEAST_LOGPROB, CompletionLogprobs, token_string

REPLY = "Hé 🚀th"


@dataclass
class ImpossibleAlternatives(FakeEngine):
    """All alternatives have log-probability -inf."""

    def _logprobs(self, token_id: int, k: int | None) -> TokenLogprobs | None:
        found = super()._logprobs(token_id, k)
        if found is None:
            return None
        return TokenLogprobs(token_id, found.logprob, tuple((each, float("-inf")) for each, _ in found.top))


def chat_entries(engine: FakeEngine | None = None, **fields: Any) -> list[dict[str, Any]]:
    answer = whole(CHAT, {"messages": HI, "logprobs": True, **fields}, engine)
    found: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
    assert len(found) == answer["usage"]["completion_tokens"]
    return found


def test_the_bytes_of_chat_entries_are_the_tokens_own_and_join_to_the_text() -> None:
    entries = chat_entries(FakeEngine(reply=REPLY))
    *told, end = entries
    assert bytes(byte for entry in told for byte in entry["bytes"]).decode() == REPLY
    assert end["token"] == "<|im_end|>"
    assert [239, 191, 189] not in [entry["bytes"] for entry in entries]
    assert told[1]["token"] == "bytes:\\xc3" and told[-1]["token"] == "th"


def test_a_chat_tells_as_many_alternatives_as_were_asked_for() -> None:
    assert all(entry["top_logprobs"] == [] for entry in chat_entries())
    for entry in chat_entries(top_logprobs=3):
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}


def test_minus_infinity_is_written_as_openai_does() -> None:
    for entry in chat_entries(ImpossibleAlternatives(), top_logprobs=2):
        assert [each["logprob"] for each in entry["top_logprobs"]] == [LEAST_LOGPROB] * 2


@pytest.mark.parametrize("k", [0, 1, 5])
def test_completions_tell_four_lists_of_one_length(k: int) -> None:
    answer = whole(COMPLETIONS, {"prompt": "x", "logprobs": k, "max_tokens": 4}, FakeEngine())
    found = answer["choices"][0]["logprobs"]
    assert found["tokens"] == ["H", "e", "l", "l"] and found["text_offset"] == [0, 1, 2, 3]
    assert found["token_logprobs"] == [-0.5] * 4
    assert all(
        len(top) == max(k, 1) and top[token] == -0.5
        for token, top in zip(found["tokens"], found["top_logprobs"], strict=True)
    )


def test_an_echo_with_logprobs_scores_the_prompt_but_for_its_first_token() -> None:
    answer = whole(COMPLETIONS, {"prompt": "thé", "logprobs": 2, "max_tokens": 2, "echo": True})
    found = answer["choices"][0]["logprobs"]
    assert answer["choices"][0]["text"] == "théHe"
    assert found["tokens"] == ["th", "bytes:\\xc3", "bytes:\\xa9", "H", "e"]
    assert found["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert found["top_logprobs"][0] is None and len(found["top_logprobs"][1]) == 2
    assert found["text_offset"] == [0, 2, 2, 3, 4]
    assert answer["usage"]["completion_tokens"] == 2


def test_scoring_gives_the_prompt_alone() -> None:
    answer = whole(COMPLETIONS, {"prompt": ["the", "x y"], "logprobs": 1, "max_tokens": 0, "echo": True})
    assert [choice["logprobs"]["tokens"] for choice in answer["choices"]] == [["th", "e"], ["x", " ", "y"]]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 2
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 2, "n": 2}),
    (COMPLETIONS, {"prompt": "thé", "logprobs": 2, "n": 2}),
    (COMPLETIONS, {"prompt": ["thé", "x"], "logprobs": 2, "n": 2, "echo": True}),
    (COMPLETIONS, {"prompt": ["thé", "x"], "logprobs": 2, "max_tokens": 0, "echo": True}),
], ids=["chat", "completion", "echo", "scoring"])  # fmt: skip
def test_the_entries_of_a_stream_join_to_those_of_the_whole_answer(path: str, body: dict[str, Any]) -> None:
    answer = whole(path, body, FakeEngine(reply=REPLY))
    joined: dict[int, dict[str, list[Any]]] = {}
    for choice in (each for chunk in streamed(path, body, FakeEngine(reply=REPLY)) for each in chunk["choices"]):
        for name, items in (choice["logprobs"] or {}).items():
            joined.setdefault(choice["index"], {}).setdefault(name, []).extend(items or [])
    for choice in answer["choices"]:
        expected = {name: items or [] for name, items in choice["logprobs"].items()}
        assert joined[choice["index"]] == expected


def test_the_other_choices_of_a_prompt_wait_for_its_scores() -> None:
    """The engine tells them with the first choice's first event; it may come after another's."""

    @dataclass
    class SecondFirst(FakeEngine):
        async def run(self, requests: Any) -> Any:
            async for events in super().run(requests):
                for event in reversed(events):
                    yield [event]

    body = {"prompt": "the", "logprobs": 1, "n": 3, "echo": True, "max_tokens": 2}
    chunks = streamed(COMPLETIONS, body, SecondFirst())
    first = {}
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        first.setdefault(choice["index"], choice)
    assert [choice["logprobs"]["tokens"][:2] for choice in first.values()] == [["th", "e"]] * 3
    assert whole(COMPLETIONS, body, SecondFirst())["choices"] == whole(COMPLETIONS, body)["choices"]


def test_a_token_of_half_a_character_is_told_by_its_bytes_and_all_names_differ() -> None:
    tokenizer = byte_tokenizer()
    names = [token_string(tokenizer, token_id) for token_id in range(tokenizer.vocab_size)]
    assert len(set(names)) == len(names) and all("\ufffd" not in name for name in names)
    json.dumps(names)


def test_of_two_tokens_with_one_name_the_likelier_is_told() -> None:
    scores = CompletionLogprobs(byte_tokenizer(), (), "")
    past = byte_tokenizer().vocab_size + 1  # ids past the vocabulary have no text
    entries = scores.entries([(past, TokenLogprobs(past, -3.0, ((past + 1, -1.0), (past + 2, -2.0))))])
    assert entries["top_logprobs"] == [{"": -1.0}]
