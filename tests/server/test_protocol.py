"""Fields of requests: each is honoured, or answered 400 by its name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from api_calls import CHAT, COMPLETIONS, HI, chat, complete, post
from fake_engine import FakeEngine

from octavo.sampling_params import SamplingParams

HARMLESS_IN_BOTH: dict[str, list[Any]] = {
    "user": ["someone"],
    "metadata": [{"run": "7"}],
    "store": [False],
    "service_tier": ["auto", "default"],
    "stop": [[]],
    "logit_bias": [{}],
    "top_k": [-1, 0],
    "response_format": [{"type": "text"}],
}
HARMLESS_IN_CHAT: dict[str, list[Any]] = {
    "parallel_tool_calls": [True, False],
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "functions": [[]],
    "function_call": ["none"],
    "modalities": [["text"]],
    "verbosity": ["medium"],
    "safety_identifier": ["someone"],
    "prompt_cache_key": ["key"],
    "prompt_cache_retention": ["in_memory"],
    "continue_final_message": [False],
    "logprobs": [False],
    "top_logprobs": [0],
}
HARMLESS_IN_COMPLETIONS: dict[str, list[Any]] = {"best_of": [1], "suffix": [""], "echo": [False]}

UNSUPPORTED_IN_CHAT: dict[str, list[Any]] = {
    "tools": [[{"type": "function", "function": {"name": "f"}}]],
    "functions": [[{"name": "f"}]],
    "function_call": [{"name": "f"}],
    "modalities": [["text", "audio"]],
    "audio": [{"voice": "a", "format": "wav"}],
    "prediction": [{"type": "content", "content": "x"}],
    "reasoning_effort": ["low"],
    "verbosity": ["high"],
    "web_search_options": [{}],
    "prompt_cache_retention": ["24h"],
    "continue_final_message": [True],
    "store": [True],
    "service_tier": ["flex", "priority"],
}
UNSUPPORTED_IN_COMPLETIONS: dict[str, list[Any]] = {
    "best_of": [2],
    "suffix": ["the end"],
    "store": [True],
    "service_tier": ["flex"],
}


def cases(*tables: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for table in tables for name, values in table.items() for value in values]


@pytest.mark.parametrize(("name", "value"), cases(HARMLESS_IN_BOTH, HARMLESS_IN_CHAT))
def test_chat_accepts_what_asks_for_nothing(name: str, value: Any) -> None:
    assert chat(**{name: value}).status == 200


@pytest.mark.parametrize(("name", "value"), cases(HARMLESS_IN_BOTH, HARMLESS_IN_COMPLETIONS))
def test_completions_accept_what_asks_for_nothing(name: str, value: Any) -> None:
    assert complete("hi", **{name: value}).status == 200


@pytest.mark.parametrize(("name", "value"), cases(UNSUPPORTED_IN_CHAT))
def test_chat_refuses_by_name_what_it_cannot_do(name: str, value: Any) -> None:
    answer = chat(**{name: value})
    assert answer.status == 400
    assert answer.error["param"] == name and answer.error["code"] == "unsupported_parameter"
    assert name in answer.error["message"]


@pytest.mark.parametrize(("name", "value"), cases(UNSUPPORTED_IN_COMPLETIONS))
def test_completions_refuse_by_name_what_they_cannot_do(name: str, value: Any) -> None:
    answer = complete("hi", **{name: value})
    assert answer.status == 400 and answer.error["param"] == name


def test_null_means_absent_in_every_field() -> None:
    from octavo.server.protocol.chat import ChatRequest
    from octavo.server.protocol.completions import CompletionRequest

    engine = FakeEngine()
    nulls = dict.fromkeys(ChatRequest.model_fields.keys() - {"messages"})
    assert chat(engine, **nulls).status == 200
    nulls = dict.fromkeys(CompletionRequest.model_fields.keys() - {"prompt"})
    assert complete("hi", engine, **nulls).status == 200
    assert [each.params for each in engine.requests] == [SamplingParams(temperature=1.0)] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"best_of": 1}, "best_of"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 5_000_000}, "n"),
        ({"n": True}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": 8.5}, "max_tokens"),
        ({"max_tokens": 10**300}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 1_000_000, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["ok", 1]}, "stop[1]"),
        ({"stop": "x" * 1001}, "stop"),
        ({"stop": {}}, "stop"),
        ({"stop_token_ids": [260]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {"one": 1}}, "logit_bias.one"),
        ({"logit_bias": {"1": 1e5}}, "logit_bias.1"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias"),
        ({"presence_penalty": 101}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"user": 5}, "user"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_field(fields: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    answer = chat(engine, **fields)
    assert answer.status == 400 and answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error" and len(answer.error["message"]) < 400
    assert not engine.requests


def test_every_sampling_field_reaches_the_engine() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.4,
        "logit_bias": {"7": -100, "8": 1.5},
        "seed": 11,
        "n": 2,
        "stop": ["#", "##"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "max_tokens": 4,
    }
    expected = SamplingParams(**{**fields, "logit_bias": {7: -100, 8: 1.5}})
    for path, body in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "hi"})):
        engine = FakeEngine()
        answer = post(path, {**body, **fields, "priority": -3, "cache_salt": "mine"}, engine, request_timeout_s=9.0)
        assert answer.status == 200
        first, second = engine.requests
        assert first.params == second.params == expected
        assert (first.choice, second.choice) == (0, 1) and first.request_id != second.request_id
        assert first.prompt_token_ids == second.prompt_token_ids
        assert {(r.seed, r.priority, r.cache_salt, r.timeout_s) for r in engine.requests} == {(11, -3, "mine", 9.0)}


def test_a_request_without_a_seed_draws_one() -> None:
    engine = FakeEngine()
    chat(engine)
    chat(engine)
    assert engine.requests[0].seed != engine.requests[1].seed


def test_a_whole_number_may_be_written_with_a_point() -> None:
    engine = FakeEngine()
    assert chat(engine, max_tokens=8.0, n=1.0).status == 200
    assert complete([1.0, 2, 3.0], engine).status == 200
    assert engine.requests[1].prompt_token_ids == (1, 2, 3)
    assert engine.requests[0].params.max_tokens == 8


@pytest.mark.parametrize("fields", [{"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3.0}])
def test_both_names_of_the_token_limit_mean_the_same(fields: dict[str, Any]) -> None:
    choice = chat(**fields).json()["choices"][0]
    assert choice["message"]["content"] == "Hel" and choice["finish_reason"] == "length"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_model_is_a_name_to_compare_and_never_a_path(path: str, tmp_path: Any) -> None:
    body = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    assert post(path, body).json()["model"] == "fake-model"
    assert post(path, {**body, "model": "fake-model"}).status == 200
    assert post(path, {**body, "model": "b"}, model_names=("a", "b")).json()["model"] == "b"
    assert post(path, body, model_names=("a", "b")).json()["model"] == "a"
    for name in ("other", "", str(tmp_path), "../model.gguf"):
        answer = post(path, {**body, "model": name})
        assert answer.status == 404
        assert answer.error["param"] == "model" and answer.error["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [["x"] * 300_000]},
        {"prompt": [1] * 300_000 + ["x"]},
        {"prompt": ["x"] * 300_000},
        {"prompt": "hi", "stop": [1] * 300_000},
        {"prompt": "hi", "logit_bias": {str(i): "x" for i in range(4096)}},
    ],
    ids=["list of texts as ids", "ids", "too many texts", "stops", "biases"],
)
def test_large_wrong_lists_are_refused_in_no_time(body: dict[str, Any]) -> None:
    begun = time.perf_counter()
    assert post(COMPLETIONS, body).status == 400
    assert time.perf_counter() - begun < 2.0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"moderation": {"model": "m"}}, "moderation is not supported: nothing is moderated here; leave it out"),
        ({"guided_json": {}}, "guided_json is not supported: send response_format of type json_schema"),
        ({"n_predict": 5}, "n_predict is not supported: send max_tokens"),
        ({"enable_thinking": False}, "enable_thinking is not supported: send chat_template_kwargs with it in it"),
        ({"min_tokens": 3}, "min_tokens is not supported: bound the answer with regex, or send ignore_eos"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_field_of_other_servers_is_refused_with_what_to_do_in_its_place(fields: dict[str, Any], said: str) -> None:
    answer = chat(**fields)
    assert (answer.status, answer.error["message"]) == (400, said)
    assert (answer.error["param"], answer.error["code"]) == (next(iter(fields)), "unsupported_parameter")


def test_a_field_of_other_servers_that_asks_for_nothing_is_taken() -> None:
    assert chat(min_tokens=0, use_beam_search=False, length_penalty=1.0, guided_json=None).status == 200


def test_an_object_of_which_no_value_is_taken_is_refused_in_words_of_json() -> None:
    error = post("/v1/responses", {"input": "hi", "reasoning": {"effort": "low"}}).error
    assert error["message"] == "reasoning.effort is 'low', which is not supported; leave it out"


def test_every_field_is_in_the_documented_table() -> None:
    from octavo.server.protocol.chat import ChatRequest
    from octavo.server.protocol.completions import CompletionRequest
    from octavo.server.protocol.tokens import DetokenizeRequest, TokenizeChat, TokenizeText

    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for model in (ChatRequest, CompletionRequest, TokenizeText, TokenizeChat, DetokenizeRequest):
        assert [name for name in model.model_fields if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        (CHAT, {"messages": HI, "max_token": 5}, "max_token", "did you mean 'max_tokens'?"),
        (CHAT, {"messages": HI, "temprature": 1}, "temprature", "did you mean 'temperature'?"),
        (CHAT, {"message": HI}, "message", "did you mean 'messages'?"),
        (CHAT, {"prompt": "x"}, "prompt", "leave it out; and 'messages' is missing, give it"),
        (CHAT, {"max_token": 5}, "max_token", "did you mean 'max_tokens'? And 'messages' is missing, give it"),
        (CHAT, {"messages": HI, "qux": 5}, "qux", "leave it out"),
        (CHAT, {"messages": [{"role": "user", "contnt": "x"}]}, "messages[0].contnt", "did you mean 'content'?"),
        (CHAT, {"messages": [{"rol": "user", "content": "x"}]}, "messages[0].rol", "did you mean 'role'?"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is missing; give it"),
        (
            CHAT,
            {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schma": {}}}},
            "response_format.json_schema.schma",
            "did you mean 'schema'?",
        ),
        (COMPLETIONS, {"promt": "x"}, "promt", "did you mean 'prompt'?"),
        ("/v1/responses", {"inputs": "x"}, "inputs", "did you mean 'input'?"),
        ("/v1/responses", {"input": [{"role": "user", "contents": "x"}]}, "input[0].contents", "mean 'content'?"),
        ("/v1/embeddings", {"inputs": "x"}, "inputs", "did you mean 'input'?"),
    ],
)
def test_a_misspelt_field_is_told_which_one_was_meant(
    path: str, fields: dict[str, Any], param: str, message: str
) -> None:
    error = post(path, fields).error
    assert error["param"] == param and error["message"].endswith(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [{"role": "bot", "content": "x"}]}, "'system', 'developer', 'user', 'assistant' or 'tool'"),
        ({"messages": HI, "response_format": {"type": "jsn"}}, "'text', 'json_object' or 'json_schema'"),
    ],
)
def test_a_list_of_choices_ends_with_or(fields: dict[str, Any], message: str) -> None:
    assert post(CHAT, fields).error["message"].endswith(f"it should be {message}")
