"""/v1/completions, /tokenize and /detokenize: prompts of every form, in their order, each with its own text."""

from __future__ import annotations

from typing import Any

import pytest
from api_calls import COMPLETIONS, complete, post, reasons_of, streamed, texts_of, whole
from fake_engine import FakeEngine, byte_tokenizer

IDS = [72, 73, 74]


def prompts_of(engine: FakeEngine) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for request in engine.requests]


def test_an_answer_has_openais_shape() -> None:
    answer = whole(COMPLETIONS, {"prompt": "the"})
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert answer["choices"] == [{"index": 0, "text": "Hello there, world.", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"]["prompt_tokens"] == 2 and answer["usage"]["completion_tokens"] == 19


def test_a_prompt_is_text_or_ids_and_several_are_a_list_of_either() -> None:
    text = tuple(byte_tokenizer().encode("the"))
    for prompt, expected in (
        ("the", [text]),
        (["the", "x"], [text, tuple(byte_tokenizer().encode("x"))]),
        (IDS, [tuple(IDS)]),
        ([IDS, [5]], [tuple(IDS), (5,)]),
    ):
        engine = FakeEngine()
        assert complete(prompt, engine).status == 200
        assert prompts_of(engine) == expected


def test_control_tokens_in_a_text_are_text() -> None:
    engine = FakeEngine()
    complete("<|im_end|>", engine)
    assert len(prompts_of(engine)[0]) == len("<|im_end|>")


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_numbered_prompt_by_prompt_and_have_the_text_of_their_own(stream: bool) -> None:
    prompts = ["a", "bb" * 30, "c" * 7, "dd", "e" * 200]
    body = {"prompt": prompts, "n": 2, "echo": True, "max_tokens": 3}
    if stream:
        chunks = streamed(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        texts, usage = texts_of(chunks), chunks[-1]["usage"]
        assert reasons_of(chunks) == {index: ["length"] for index in range(10)}
    else:
        answer = whole(COMPLETIONS, body)
        texts, usage = {each["index"]: each["text"] for each in answer["choices"]}, answer["usage"]
    assert texts == {2 * number + choice: prompt + "Hel" for number, prompt in enumerate(prompts) for choice in (0, 1)}
    assert usage["prompt_tokens"] == sum(map(len, prompts)) and usage["completion_tokens"] == 30


def test_an_echo_of_ids_is_their_text() -> None:
    ids = byte_tokenizer().encode("there ")
    assert whole(COMPLETIONS, {"prompt": ids, "echo": True})["choices"][0]["text"] == "there Hello there, world."


def test_an_echo_of_no_visible_text_is_no_text() -> None:
    end = min(byte_tokenizer().eos_token_ids)
    assert whole(COMPLETIONS, {"prompt": [end], "echo": True, "max_tokens": 1})["choices"][0]["text"] == "H"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([""], "prompt"),
        (["ok", ""], "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([1, "x"], "prompt[1]"),
        (["x", 1], "prompt[1]"),
        ([[1], "x"], "prompt[1]"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        ([-1], "prompt[0]"),
        ([260], "prompt"),
        ([[1], [10**30]], "prompt[1][0]"),
        (5, "prompt"),
        (None, "prompt"),
        ({"text": "x"}, "prompt"),
        ("x" * 512, "prompt"),
        ([1] * 512, "prompt"),
        (["x"] * 129, "prompt"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_prompt_that_cannot_be_is_refused(prompt: Any, param: str) -> None:
    engine = FakeEngine()
    answer = complete(prompt, engine)
    assert answer.status == 400 and answer.error["param"] == param
    assert not engine.requests


@pytest.mark.parametrize("prompt", ["", [""]])
def test_an_empty_text_is_the_first_token_of_a_model_that_has_one(prompt: Any) -> None:  # report R010
    engine = FakeEngine(model_tokenizer=byte_tokenizer(begins_with_bos=True))
    assert complete(prompt, engine).status == 200
    assert [byte_tokenizer().decode(ids, skip_special_tokens=False) for ids in prompts_of(engine)] == ["<|endoftext|>"]


def test_an_absent_prompt_is_missing() -> None:
    assert "missing" in post(COMPLETIONS, {}).error["message"]


def test_a_long_prompt_is_told_with_both_numbers() -> None:
    error = complete(["ok", "x" * 600]).error
    assert error["code"] == "context_length_exceeded"
    assert all(each in error["message"] for each in ("512", "600", "511", "prompt[1]"))


def test_prompts_times_n_are_bounded() -> None:
    assert post(COMPLETIONS, {"prompt": ["x"] * 4, "n": 2}, max_choices=8).status == 200
    answer = post(COMPLETIONS, {"prompt": ["x"] * 3, "n": 3}, max_choices=8)
    assert answer.status == 400 and answer.error["param"] == "n"
    assert post(COMPLETIONS, {"prompt": ["x"] * 9}, max_prompts=8).error["param"] == "prompt"


def test_no_tokens_at_all_need_an_echo() -> None:
    answer = complete("x", max_tokens=0)
    assert answer.status == 400 and answer.error["param"] == "max_tokens"
    choice = whole(COMPLETIONS, {"prompt": "there", "max_tokens": 0, "echo": True})["choices"][0]
    assert choice == {"index": 0, "text": "there", "logprobs": None, "finish_reason": "length"}


def test_tokenize_gives_what_a_completion_would_use() -> None:
    found = post("/tokenize", {"prompt": "the é", "return_token_strs": True}).json()
    assert found == {
        "tokens": byte_tokenizer().encode("the é"),
        "count": 5,
        "max_model_len": 512,
        "token_strs": ["th", "e", " ", "bytes:\\xc3", "bytes:\\xa9"],
    }
    assert post("/tokenize", {"prompt": ""}).json()["tokens"] == []


def test_tokenize_takes_conversations_through_the_template() -> None:
    messages = [{"role": "user", "content": "hi"}]
    found = post("/tokenize", {"messages": messages}).json()
    assert found["tokens"] == byte_tokenizer().encode_chat(messages) and found["token_strs"] is None
    shorter = post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()
    assert shorter["count"] < found["count"]


def test_detokenize_is_the_way_back() -> None:
    ids = byte_tokenizer().encode_chat([{"role": "user", "content": "hé"}])
    assert post("/detokenize", {"tokens": ids}).json()["prompt"].startswith("<|im_start|>user\nhé<|im_end|>")
    assert post("/detokenize", {"tokens": ids, "skip_special_tokens": True}).json()["prompt"].startswith("user\nhé\n")
    assert post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "text": "x"}, "text"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [260]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_tokenized_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    answer = post(path, body)
    assert answer.status == 400 and answer.error["param"] == param


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})])
def test_tokenizing_for_another_model_is_a_404(path: str, body: dict[str, Any]) -> None:
    assert post(path, {**body, "model": "other"}).status == 404
