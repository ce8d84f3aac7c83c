"""Reports of kind b, what the API's fields mean, replayed by clients of a real server."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cases.scripted_model import LETTERS, byte_ids
from tests.cases.served import CHAT, COMPLETIONS, Served, deltas_of, events_of, text_of, user
from tests.tiny_models import VOCAB_SIZE, tiny_tokenizer

AFTER_A = LETTERS[1:]


def assert_serves(served: Served) -> None:
    """The next request is answered, and soon."""
    begun = time.monotonic()
    answer = served.whole(COMPLETIONS, {"prompt": "a", "temperature": 0})
    assert answer["choices"][0]["text"] == AFTER_A
    assert time.monotonic() - begun < 3.0


# -- R007: nulls and the two names of the limit ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"max_tokens": None, "model": None}, AFTER_A, "stop"),
        ({"max_completion_tokens": 8}, "bcdefghi", "length"),
        ({"max_tokens": None, "max_completion_tokens": 8}, "bcdefghi", "length"),
        ({"max_tokens": 8, "max_completion_tokens": 8}, "bcdefghi", "length"),
        ({"max_tokens": 1}, "b", "length"),
        ({"max_tokens": 8.0}, "bcdefghi", "length"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_r007_a_null_is_the_default_and_both_limits_are_limits(
    served: Served, fields: dict[str, Any], text: str, reason: str, stream: bool
) -> None:
    body = {"messages": user("a"), "temperature": 0, **fields}
    if stream:
        chunks = served.chunks(CHAT, {**body, "stream_options": {"include_usage": True}})
        usage = chunks.pop()["usage"]
        assert "".join(deltas_of(chunks)) == text
        assert chunks[-1]["choices"][0]["finish_reason"] == reason
    else:
        answer = served.whole(CHAT, body)
        usage = answer["usage"]
        assert (text_of(answer["choices"][0]), answer["choices"][0]["finish_reason"]) == (text, reason)
    assert usage["completion_tokens"] == len(text) + (reason == "stop")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [-1, 0, 8.5, "8"])
def test_r007_a_limit_that_is_none_is_refused_by_its_name(served: Served, name: str, value: Any) -> None:
    assert served.refused(CHAT, {"messages": user("a"), name: value})["param"] == name


# -- R008: numbers out of all bounds --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_r008_hostile_numbers_are_refused_at_once_and_touch_no_request_in_flight(served: Served, stream: bool) -> None:
    hostile: list[dict[str, Any]] = [
        {"logprobs": True, "top_logprobs": 1_000_000},
        {"n": 5_000_000},
        {"n": 10**30},
        *({"stop_token_ids": [each]} for each in (VOCAB_SIZE, 2**31 - 1, 10**20, -1)),
        *({"logit_bias": {key: 1}} for key in (str(VOCAB_SIZE), "2147483647", "99999999999999999999", "-1")),
        {"logit_bias": {"5": 10**400}},
        {"top_k": 10**20},
        {"seed": 10**40},
        {"max_tokens": 10**40},
        {"stop": ["x" * 5_000]},
        {"stop": ["x"] * 5_000},
    ]

    fields = {"prompt": "0", "temperature": 0, "max_tokens": 1500, "stream": True}
    with served.client.stream("POST", COMPLETIONS, json=fields) as response:
        events = events_of(response)
        first = next(events)  # it is being answered
        slowest = 0.0
        for each in hostile:
            begun = time.monotonic()
            error = served.refused(CHAT, {"messages": user("a"), "stream": stream, **each})
            slowest = max(slowest, time.monotonic() - begun)
            assert error["param"].split(".")[0].split("[")[0] in each
        *chunks, done = [first, *events]
    assert done == "[DONE]" and "".join(deltas_of(chunks)) == "0" * 1500
    assert slowest < 1.0  # milliseconds, on a machine with nothing else to do
    assert_serves(served)


# -- R010: nothing to begin with ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["", [""], ["a", ""], [], [[]]], ids=str)
def test_r010_a_prompt_of_no_tokens_is_refused_and_the_server_goes_on(
    served: Served, prompt: Any, stream: bool
) -> None:
    assert served.refused(COMPLETIONS, {"prompt": prompt, "stream": stream})["param"].startswith("prompt")
    assert_serves(served)


def test_r010_a_conversation_of_no_messages_is_refused_and_one_of_no_words_is_answered(served: Served) -> None:
    assert served.refused(CHAT, {"messages": []})["param"] == "messages"
    answer = served.whole(CHAT, {"messages": user(""), "temperature": 0})
    assert text_of(answer["choices"][0]) == LETTERS  # after the template's own line feed
    # The first token alone is a prompt like any other, which is what an empty text is to models that have one.
    assert served.whole(COMPLETIONS, {"prompt": [0], "max_tokens": 3})["usage"]["prompt_tokens"] == 1


# -- R011: token ids, lists and their order -------------------------------------------------------------------------


def test_r011_a_flat_list_of_ids_is_one_prompt_taken_verbatim(served: Served) -> None:
    ids = [0, 7, *byte_ids("xa")]  # an id that text would not give, and no other before it
    answer = served.whole(COMPLETIONS, {"prompt": ids, "temperature": 0, "echo": True, "logprobs": 0})
    assert len(answer["choices"]) == 1 and answer["usage"]["prompt_tokens"] == 4
    told = answer["choices"][0]["logprobs"]["tokens"][:4]
    assert told == ["<|endoftext|>", tiny_tokenizer().id_to_token(7), "x", "a"]
    assert answer["choices"][0]["text"].endswith("xa" + AFTER_A)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_r011_each_of_five_prompts_has_its_own_two_answers_in_its_own_place(
    served: Served, stream: bool, as_ids: bool
) -> None:
    prompts = ["y", "0" * 300 + "a", "go:m", "\n" * 40, "??x"]
    answers = [LETTERS[LETTERS.index(prompt[-1]) + 1 :] if prompt[-1] != "\n" else LETTERS for prompt in prompts]
    given = [byte_ids(prompt) for prompt in prompts]
    body: dict[str, Any] = {"prompt": given if as_ids else prompts, "n": 2, "temperature": 0}
    lengths = [
        served.whole(COMPLETIONS, {"prompt": each, "max_tokens": 1})["usage"]["prompt_tokens"]
        for each in body["prompt"]
    ]
    if stream:
        chunks = served.chunks(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        usage = chunks.pop()["usage"]
        texts = ["".join(deltas_of(chunks, index)) for index in range(10)]
        ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"] is not None]
        assert sorted(ends) == list(range(10)) and ends != sorted(ends)  # they did not end in their order
    else:
        answer = served.whole(COMPLETIONS, body)
        usage = answer["usage"]
        assert [choice["index"] for choice in answer["choices"]] == list(range(10))
        texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [each for each in answers for _ in range(2)]
    assert usage["prompt_tokens"] == sum(lengths)
    assert usage["completion_tokens"] == 2 * sum(len(each) + 1 for each in answers)


def test_r011_every_prompt_of_several_has_log_probabilities(served: Served) -> None:
    answer = served.whole(COMPLETIONS, {"prompt": ["a", "x", "0"], "logprobs": 1, "temperature": 0, "max_tokens": 4})
    told = [choice["logprobs"]["tokens"] for choice in answer["choices"]]
    assert told == [["b", "c", "d", "e"], ["y", "z", "<|im_end|>"], ["0"] * 4]


# -- R013: the bytes of tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_r013_log_probabilities_have_the_true_bytes_of_each_token_by_itself(served: Served, stream: bool) -> None:
    body = {"messages": user("🚀"), "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    if stream:
        chunks = [choice for chunk in served.chunks(CHAT, body) for choice in chunk["choices"]]
        entries = [entry for each in chunks if each["logprobs"] for entry in each["logprobs"]["content"]]
    else:
        entries = served.whole(CHAT, body)["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[byte] for byte in "🚀".encode()]
    raw = tiny_tokenizer()
    ids = {raw.id_to_token(token_id): token_id for token_id in range(VOCAB_SIZE)}
    assert len(ids) == VOCAB_SIZE
    for entry in entries:
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"] and len(entry["top_logprobs"]) == 3
        for each in (entry, *entry["top_logprobs"]):
            assert each["bytes"] and each["bytes"] != list("\ufffd".encode()) and "\ufffd" not in each["token"]
            if not each["token"].startswith("bytes:"):
                assert bytes(each["bytes"]).decode() == each["token"]
