"""/v1/chat/completions: what a conversation becomes for the engine, and what becomes of the engine's answer."""

from __future__ import annotations

from typing import Any

import pytest
from api_calls import CHAT, HI, chat, post, whole
from fake_engine import INFO, FakeEngine, byte_tokenizer

from octavo.errors import CapacityError, EngineFault, InvalidRequest, NotReady, OctavoError, QueueFull

REFUSING_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
)
DEVELOPER_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'developer' %}DEV {% endif %}"
    "{{ message['content'] }}{% endfor %}"
)
TOOL_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}:{{ message['content'] }}"
    "{% for call in message.get('tool_calls') or [] %}"
    "<{{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}>"
    "{% endfor %}]{% endfor %}"
)


def rendered(messages: list[dict[str, Any]], template: str | None = None, **fields: Any) -> str:
    """The text of the prompt that the engine got."""
    engine = FakeEngine() if template is None else FakeEngine(model_tokenizer=byte_tokenizer(template))
    answer = post(CHAT, {"messages": messages, **fields}, engine)
    assert answer.status == 200, answer.body
    return engine.tokenizer.decode(engine.requests[0].prompt_token_ids, skip_special_tokens=False)


def test_an_answer_has_openais_shape() -> None:
    answer = whole(CHAT, {"messages": HI})
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello there, world.", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 19  # 18 pieces of text, for "th" is one, and the end


def test_n_choices_are_n_requests_that_share_a_prompt_which_is_counted_once() -> None:
    one, three = whole(CHAT, {"messages": HI}), whole(CHAT, {"messages": HI, "n": 3})
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]


def test_the_answer_goes_up_to_the_context_without_a_limit() -> None:
    answer = whole(CHAT, {"messages": HI}, FakeEngine(endless=True))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == INFO.max_context


def test_a_stop_string_ends_the_answer_before_it() -> None:
    choice = whole(CHAT, {"messages": HI, "stop": "ere"})["choices"][0]
    assert choice["message"]["content"] == "Hello th" and choice["finish_reason"] == "stop"


def test_the_template_writes_the_prompt() -> None:
    assert rendered(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(HI, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    assert rendered(HI, "{{ messages[0]['content'] }} {{ mood }}", chat_template_kwargs={"mood": "calm"}) == "hi calm"


def test_text_parts_are_all_honoured_in_their_order() -> None:
    parts = [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]
    assert "first\nsecond" in rendered([{"role": "user", "content": parts}])


def test_the_developer_is_the_system_unless_the_template_knows_the_role() -> None:
    messages = [{"role": "developer", "content": "be brief"}, *HI]
    assert rendered(messages).startswith("<|im_start|>system\nbe brief")
    assert rendered(messages, DEVELOPER_TEMPLATE) == "DEV be briefhi"


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}], ids=["null", "absent", "empty"])
def test_an_earlier_tool_call_and_its_result_reach_the_template(content: dict[str, Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    messages = [
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    assert rendered(messages, TOOL_TEMPLATE) == '[user:2+3?][assistant:<add {"a": 2, "b": 3}>][tool:5]'
    assert "None" not in rendered(messages)


def test_an_answer_may_be_sent_back_as_the_official_client_keeps_it() -> None:
    nulls = dict.fromkeys(["refusal", "audio", "function_call", "tool_calls", "annotations", "reasoning_content"])
    message = {"role": "assistant", "content": "hello", **nulls}
    assert "<|im_start|>assistant\nhello<|im_end|>" in rendered([*HI, message, *HI])


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([5], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "robot", "content": "hi"}], "messages[0].role"),
        ([{"role": "function", "name": "f", "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 4}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([*HI, {"role": "user", "content": "hi", "mood": "calm"}], "messages[1].mood"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "image_url", "image_url": {}}]}],
            "messages[0].content[1].type",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type"),
        ([{"role": "tool", "content": "5"}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{"id": "c"}]}], "messages[0].tool_calls[0].function"),
    ],
    ids=str,
)
def test_a_message_that_cannot_be_is_refused_by_its_place(messages: Any, param: str) -> None:
    answer = post(CHAT, {"messages": messages})
    assert answer.status == 400 and answer.error["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_template_that_refuses_is_a_400_with_its_own_message(stream: bool) -> None:
    engine = FakeEngine(model_tokenizer=byte_tokenizer(REFUSING_TEMPLATE))
    answer = post(CHAT, {"messages": [{"role": "system", "content": "x"}, *HI], "stream": stream}, engine)
    assert answer.status == 400 and "System role not supported" in answer.error["message"]
    assert answer.error["param"] == "messages"


GEMMA_2_TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "[{{ message['role'] }}] {{ message['content'] }}{% endfor %}"
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ("system user", "System role not supported"),
        ("developer user", "System role not supported"),
        ("user user", "Roles must alternate"),
        ("assistant user", "Roles must alternate"),
        ("user oracle", "'oracle'"),
        ("user assistant tool", "Roles must alternate"),
    ],
)
def test_roles_that_a_template_does_not_take_are_a_400_before_any_of_a_stream(
    roles: str, said: str, stream: bool
) -> None:  # report R018
    engine = FakeEngine(model_tokenizer=byte_tokenizer(GEMMA_2_TEMPLATE))
    messages = [
        {"role": role, "content": "x"} | ({"tool_call_id": "c"} if role == "tool" else {}) for role in roles.split()
    ]
    answer = post(CHAT, {"messages": messages, "stream": stream}, engine)
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error"
    assert said in answer.error["message"] and "Traceback" not in answer.error["message"]
    assert not engine.requests


@pytest.mark.parametrize("arguments", ["{not json", "[1]", "", "5"])
def test_arguments_of_a_tool_call_that_are_no_json_object_are_text_or_a_400(arguments: str) -> None:  # report R017
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [*HI, {"role": "assistant", "tool_calls": [call]}, *HI]
    assert post(CHAT, {"messages": messages}, FakeEngine(model_tokenizer=byte_tokenizer(TOOL_TEMPLATE))).status == 200
    iterating = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"
        "{{ k }}{% endfor %}{% endfor %}x{% endfor %}"
    )
    answer = post(CHAT, {"messages": messages}, FakeEngine(model_tokenizer=byte_tokenizer(iterating)))
    assert answer.status == 400 and answer.error["param"] == "messages"


def test_a_model_without_a_template_refuses_conversations() -> None:
    answer = post(CHAT, {"messages": HI}, FakeEngine(model_tokenizer=byte_tokenizer(None)))
    assert answer.status == 400 and "no chat template" in answer.error["message"]


def test_an_empty_user_message_is_a_conversation_like_any_other() -> None:
    assert post(CHAT, {"messages": [{"role": "user", "content": ""}]}).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused_with_both_numbers_before_it_is_queued(stream: bool) -> None:
    engine = FakeEngine()
    answer = post(CHAT, {"messages": [{"role": "user", "content": "x" * 600}], "stream": stream}, engine)
    assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
    assert "512" in answer.error["message"] and "619" in answer.error["message"]
    assert not engine.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (QueueFull("16 requests wait already; try again", 7), 429),
        (NotReady("the engine drains"), 503),
        (InvalidRequest("no"), 400),
        (CapacityError("it can never fit"), 400),
        (EngineFault("a fault"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_engine_refuses_at_once_is_a_plain_http_error(refusal: OctavoError, status: int, stream: bool) -> None:
    answer = chat(FakeEngine(refusal=refusal), stream=stream)
    assert answer.status == status and answer.error["message"] == str(refusal)
    if status == 429:
        assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("queue_timeout", 503, "queue_timeout"),
        ("request_timeout", 504, "request_timeout"),
        ("fault", 500, "engine_fault"),
        ("engine_died", 503, "engine_died"),
        ("shut_down", 503, "shutting_down"),
    ],
)
@pytest.mark.parametrize("tokens_before", [0, 2])
def test_a_fault_of_the_engine_is_an_error_of_its_own_kind(
    fault: Any, status: int, code: str, tokens_before: int
) -> None:
    answer = chat(FakeEngine(fault=fault, fault_after=tokens_before))
    assert answer.status == status and answer.error["code"] == code
    assert fault in answer.error["message"]


def test_a_fault_of_one_choice_ends_the_others_of_its_call() -> None:
    engine = FakeEngine(fault="fault")
    assert chat(engine, n=3).status == 500
    assert engine.num_running == 0


def test_the_model_must_be_ready() -> None:
    assert chat(FakeEngine(state="loading")).status == 503
    loading = chat(FakeEngine(state="loading", reason="loading the model: 40%")).error["message"]
    assert loading == "the model is not ready (loading the model: 40%); try again soon"
    assert chat(FakeEngine(state="failed", reason="it died")).status == 503


def test_more_choices_than_the_server_gives_are_refused() -> None:
    answer = post(CHAT, {"messages": HI, "n": 9}, max_choices=8)
    assert answer.status == 400 and answer.error["param"] == "n" and "8" in answer.error["message"]
