"""Tools in chat completions: what the model is told, what the client gets, whole and as a stream."""

from __future__ import annotations

from typing import Any

import pytest
from api_calls import CHAT, HI, events_of, post, reasons_of, whole
from fake_engine import CHAT_TEMPLATE, FakeEngine, byte_tokenizer
from tool_server import CALL, PLAIN, SECOND, THINKING, TIME, WEATHER, engine_over, prompt_of

from octavo.errors import InvalidRequest
from octavo.server.settings import ServerSettings

TOOLS: dict[str, Any] = {"messages": HI, "tools": [WEATHER, TIME]}


def told(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]


def gathered(body: dict[str, Any], engine: FakeEngine, **settings: Any) -> tuple[dict[str, Any], str]:
    """A stream's only choice as the whole message that it makes, and its reason; checks each chunk's shape."""
    answer = post(CHAT, {**body, "stream": True}, engine, **settings)
    assert answer.status == 200, answer.body
    *chunks, done = events_of(answer.body)
    assert done == "[DONE]"
    message: dict[str, Any] = {"content": None}
    calls: list[dict[str, Any]] = []
    for number, chunk in enumerate(chunks):
        delta = chunk["choices"][0]["delta"]
        assert ("role" in delta) == (number == 0)
        for name in ("content", "reasoning_content"):
            if delta.get(name) is not None:
                message[name] = (message.get(name) or "") + delta[name]
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(calls):
                assert piece["id"] and piece["type"] == "function" and piece["function"]["arguments"] == ""
                calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
            else:
                assert set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"}
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    (reason,) = reasons_of(chunks)[0]
    return message, reason


BONN = ("get_weather", '{"city": "Bonn"}')
REPLIES = [
    (CALL, None, [BONN], "tool_calls"),
    (f"Let me see.\n{CALL}\n{SECOND}", "Let me see.", [BONN, ("get_time", "{}")], "tool_calls"),
    ("No tool is needed.", "No tool is needed.", [], "stop"),
    ("<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", [], "stop"),
    (CALL.replace("get_weather", "get_rich"), CALL.replace("get_weather", "get_rich"), [], "stop"),
]


@pytest.mark.parametrize(("reply", "content", "calls", "reason"), REPLIES, ids=lambda value: str(value)[:30])
def test_calls_are_parted_from_content_and_a_stream_says_the_same(
    reply: str, content: str | None, calls: list[tuple[str, str]], reason: str
) -> None:
    choice = whole(CHAT, TOOLS, engine_over(reply))["choices"][0]
    message = choice["message"]
    assert (message["content"], told(message), choice["finish_reason"]) == (content, calls, reason)
    assert ("tool_calls" in message) == bool(calls)
    assert all(call["type"] == "function" and len(call["id"]) == 9 for call in message.get("tool_calls", ()))
    streamed, end = gathered(TOOLS, engine_over(reply))
    assert (streamed["content"], told(streamed), end) == (content, calls, reason)


def test_ids_differ_between_calls_and_choices() -> None:
    answer = whole(CHAT, {**TOOLS, "n": 3}, engine_over(CALL + SECOND))
    ids = [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
    assert len(ids) == len(set(ids)) == 6


def test_the_template_tells_the_model_of_its_tools_without_strict() -> None:
    engine = engine_over("x")
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": False}}
    whole(CHAT, {"messages": HI, "tools": [strict, TIME]}, engine)
    prompt = prompt_of(engine)
    assert prompt.startswith("TOOLS ") and "Tells the weather." in prompt and "strict" not in prompt
    assert '"parameters": {"type": "object"}' in prompt  # of the one that takes nothing


def test_with_tool_choice_none_the_model_is_told_of_no_tools_and_says_only_text() -> None:
    engine = engine_over(CALL)
    choice = whole(CHAT, {**TOOLS, "tool_choice": "none"}, engine)["choices"][0]
    assert "TOOLS" not in prompt_of(engine)
    assert choice["finish_reason"] == "stop" and "get_weather" in choice["message"]["content"]
    assert "tool_calls" not in choice["message"]


def test_without_tools_nothing_is_parsed_and_control_tokens_are_hidden() -> None:
    content = whole(CHAT, {"messages": HI}, engine_over(CALL))["choices"][0]["message"]["content"]
    assert content == '\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n'
    shown = whole(CHAT, {"messages": HI, "skip_special_tokens": False}, engine_over(CALL))["choices"][0]["message"]
    assert shown["content"] == CALL


def test_only_the_markers_of_calls_are_shown_not_other_control_tokens() -> None:
    message = whole(CHAT, TOOLS, engine_over("<|im_start|>said <tool_call>no call"))["choices"][0]["message"]
    assert message["content"] == "said <tool_call>no call"


def test_no_more_than_one_call_is_made_where_they_may_not_be_parallel() -> None:
    for parallel, number in ((True, 2), (None, 2), (False, 1)):
        body = {**TOOLS, "parallel_tool_calls": parallel}
        engine = engine_over(CALL + SECOND + " and more")
        choice = whole(CHAT, body, engine)["choices"][0]
        assert len(choice["message"]["tool_calls"]) == number and choice["finish_reason"] == "tool_calls"
        assert bool(engine.aborted) == (number == 1)  # what was still to come is not waited for
        assert len(gathered(body, engine_over(CALL + SECOND))[0]["tool_calls"]) == number


def test_a_call_that_the_length_cuts_is_told_as_far_as_it_came() -> None:
    body = {**TOOLS, "max_tokens": 45}
    choice = whole(CHAT, body, engine_over(CALL))["choices"][0]
    assert choice["finish_reason"] == "length"
    ((name, arguments),) = told(choice["message"])
    assert name == "get_weather" and '{"city": "Bonn"}'.startswith(arguments) and arguments
    streamed, reason = gathered(body, engine_over(CALL))
    assert (told(streamed), reason) == (told(choice["message"]), "length")


def test_a_call_that_the_length_cuts_before_its_arguments_is_neither_a_call_nor_content() -> None:
    for lead, end in (("", 5), ("", 30), ("I see.", 36), (CALL, 75), (CALL, 90)):
        body = {**TOOLS, "max_tokens": end}
        choice = whole(CHAT, body, engine_over(lead + CALL))["choices"][0]
        assert choice["finish_reason"] == "length" and (choice["message"]["content"] or "") in ("", "I see.")
        streamed, reason = gathered(body, engine_over(lead + CALL))
        assert told(streamed) == told(choice["message"]) and reason == "length"
        assert (streamed["content"] or "") == (choice["message"]["content"] or "")


def test_stop_strings_are_looked_for_in_content_only() -> None:
    for stop in ("Bonn", "city", "tool_call"):
        choice = whole(CHAT, {**TOOLS, "stop": [stop]}, engine_over(CALL))["choices"][0]
        assert choice["finish_reason"] == "tool_calls" and told(choice["message"]) == [
            ("get_weather", '{"city": "Bonn"}')
        ]
    engine = engine_over(f"One two three {CALL}")
    choice = whole(CHAT, {**TOOLS, "stop": " three"}, engine)["choices"][0]
    assert choice["message"]["content"] == "One two" and choice["finish_reason"] == "stop"
    assert engine.aborted and engine.num_running == 0


def test_a_stop_string_in_one_choice_leaves_the_others_to_their_end() -> None:
    answer = whole(CHAT, {**TOOLS, "stop": "e t", "n": 2, "logprobs": True}, engine_over("Wait one tick."))
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Wait on"] * 2
    assert answer["usage"]["completion_tokens"] == 2 * len("Wait one t")


def test_results_are_fed_back_through_the_template() -> None:
    engine = engine_over(CALL)
    message = whole(CHAT, TOOLS, engine)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    engine.reply = "It is sunny."
    answer = whole(CHAT, {**TOOLS, "messages": [*HI, message, result]}, engine)
    assert answer["choices"][0]["message"]["content"] == "It is sunny."
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn"}}</tool_call>' in prompt_of(engine)
    assert "<|im_start|>tool\nsunny<|im_end|>" in prompt_of(engine)


def test_log_probabilities_have_an_entry_for_each_token_of_a_call_too() -> None:
    body = {**TOOLS, "logprobs": True}
    answer = whole(CHAT, body, engine_over(CALL))
    assert len(answer["choices"][0]["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    *chunks, _ = events_of(post(CHAT, {**body, "stream": True}, engine_over(CALL)).body)
    entries = [each["choices"][0]["logprobs"] for each in chunks]
    assert sum(len(each["content"]) for each in entries if each) == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}, "strict"])
def test_calls_that_must_be_and_strict_ones_are_held_to_a_grammar(choice: Any) -> None:
    engine = engine_over(SECOND)
    body = {**TOOLS, "tool_choice": choice}
    if choice == "strict":
        strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
        body = {"messages": HI, "tools": [strict, TIME]}
    answer = whole(CHAT, body, engine)["choices"][0]
    assert told(answer["message"]) == [("get_time", "{}")] and answer["finish_reason"] == "tool_calls"
    grammar = engine.requests[-1].params.grammar
    assert grammar is not None and grammar.kind == "grammar" and "get_time" in grammar.text
    assert ("get_weather" in grammar.text) == (choice in ("required", "strict"))
    assert ("leading" in grammar.text) == (choice == "strict")  # text may be said, too
    assert "Tells the weather." in prompt_of(engine)  # all tools are told


def test_a_call_without_its_markers_is_one_with_and_without_strict() -> None:
    bare = '{"name": "get_time", "arguments": {}}\n{"name": "get_time", "arguments": {}}'
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    for tools in ([WEATHER, TIME], [strict, TIME]):
        message = whole(CHAT, {"messages": HI, "tools": tools}, engine_over(bare))["choices"][0]["message"]
        assert message["content"] is None and told(message) == [("get_time", "{}")] * 2


def test_calls_that_may_be_are_held_to_nothing() -> None:
    engine = engine_over(CALL)
    whole(CHAT, {**TOOLS, "tool_choice": "auto"}, engine)
    assert engine.requests[-1].params.grammar is None


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function(name="")]}, "tools[0].function.name"),
        ({"tools": [function(name="a b")]}, "tools[0].function.name"),
        ({"tools": [function(name="x" * 65)]}, "tools[0].function.name"),
        ({"tools": [function(), function()]}, "tools[1].function.name"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"properties": []})]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"required": "a"})]}, "tools[0].function.parameters"),
        ({"tools": [function(surprise=1)]}, "tools[0].function.surprise"),
        ({"tools": [function(name=f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [function()], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": 5}, "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [function()], "response_format": {"type": "json_object"}}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
    ids=str,
)
def test_tools_that_cannot_be_are_refused_by_their_place(fields: dict[str, Any], param: str) -> None:
    engine = engine_over("x")
    answer = post(CHAT, {"messages": HI, **fields}, engine)
    assert answer.status == 400 and answer.error["param"] == param, answer.body
    assert not engine.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("template", "remedy"),
    [(CHAT_TEMPLATE, "--tool-parser generic"), (PLAIN.replace("tool_call>", "my_call>"), "--tool-parser")],
)
def test_tools_that_the_template_does_not_write_or_write_back_are_a_400_naming_them(
    template: str, remedy: str, stream: bool
) -> None:
    engine = engine_over("x", template)
    answer = post(CHAT, {**TOOLS, "stream": stream}, engine)
    assert answer.status == 400 and answer.error["param"] == "tools" and remedy in answer.error["message"]
    assert not engine.requests


def test_the_generic_parser_tells_a_model_of_tools_in_a_message() -> None:
    reply = '{"name": "get_weather", "arguments": {"city": "Bonn"}}'
    engine = engine_over(reply, CHAT_TEMPLATE)
    answer = post(
        CHAT, {**TOOLS, "messages": [{"role": "system", "content": "Be brief."}, *HI]}, engine, tool_parser="generic"
    )
    assert answer.status == 200, answer.body
    assert told(answer.json()["choices"][0]["message"]) == [("get_weather", '{"city": "Bonn"}')]
    system = prompt_of(engine).split("<|im_end|>")[0]
    assert (
        "Be brief." in system and "Tells the weather." in system and '{"name": "FUNCTION", "arguments": {…}}' in system
    )
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bonn"}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "Thanks?"},
    ]
    assert post(CHAT, {**TOOLS, "messages": messages}, engine, tool_parser="generic").status == 200
    prompt = prompt_of(engine)
    assert f"<|im_start|>assistant\n{reply}<|im_end|>" in prompt
    assert "<|im_start|>user\nResult of the call c1:\nsunny\n\nThanks?<|im_end|>" in prompt


def test_a_template_that_takes_no_system_message_is_told_of_tools_by_the_user() -> None:
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    )
    engine = engine_over("```tool_code\nget_time()\n```", template)
    answer = post(CHAT, TOOLS, engine, tool_parser="gemma")
    assert answer.status == 200 and told(answer.json()["choices"][0]["message"]) == [("get_time", "{}")]
    assert prompt_of(engine).startswith("[user] You can call functions.") and prompt_of(engine).endswith("hi")


def test_a_parser_that_is_chosen_reads_in_place_of_the_templates_own() -> None:
    answer = post(CHAT, TOOLS, engine_over("[TOOL_CALLS]get_time[ARGS]{}"), tool_parser="mistral")
    assert told(answer.json()["choices"][0]["message"]) == [("get_time", "{}")]


def test_unknown_parsers_are_refused_with_the_known_ones() -> None:
    for name in ("tool_parser", "reasoning_parser"):
        with pytest.raises(InvalidRequest, match="choose one of auto"):
            ServerSettings(**{name: "klingon"})


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_told_apart_from_content_and_calls(stream: bool) -> None:
    reply = f"Hm, stop it.\n</think>\n\nLet me see.\n{CALL}"
    body = {**TOOLS, "stop": "stop"}
    if stream:
        message, reason = gathered(body, engine_over(reply, THINKING))
    else:
        choice = whole(CHAT, body, engine_over(reply, THINKING))["choices"][0]
        message, reason = choice["message"], choice["finish_reason"]
    assert message["reasoning_content"] == "Hm, stop it." and message["content"] == "Let me see."
    assert told(message) == [("get_weather", '{"city": "Bonn"}')] and reason == "tool_calls"


def test_thinking_is_parted_without_tools_too_and_can_be_switched_off() -> None:
    def message(reply: str, body: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
        answer = post(CHAT, {"messages": HI, **(body or {})}, engine_over(reply, THINKING), **settings)
        found: dict[str, Any] = answer.json()["choices"][0]["message"]
        return found

    found = message("Hm.</think>Yes.")
    assert (found["reasoning_content"], found["content"]) == ("Hm.", "Yes.")
    assert message("Hm.</think>Yes.", reasoning_parser="none")["content"] == "Hm.Yes."
    closed = message("Yes.", {"chat_template_kwargs": {"thinking": False}})
    assert closed["content"] == "Yes." and "reasoning_content" not in closed
    found = message("<think>Hm.</think>Yes.", {"chat_template_kwargs": {"thinking": False}})
    assert (found["reasoning_content"], found["content"]) == ("Hm.", "Yes.")
    found = message("Still at it", {"max_tokens": 9})
    assert (found["reasoning_content"], found["content"]) == ("Still at", "")


def test_an_answer_with_a_form_of_its_own_is_content_to_the_letter() -> None:
    body = {"messages": HI, "regex": "x+"}
    message = whole(CHAT, body, engine_over("xx", THINKING))["choices"][0]["message"]
    assert message["content"] == "xx" and "reasoning_content" not in message


def test_a_model_whose_answers_have_no_parts_is_read_as_ever() -> None:
    engine = FakeEngine(model_tokenizer=byte_tokenizer())
    whole(CHAT, {"messages": HI, "stop": "x"}, engine)
    assert tuple(engine.requests[-1].params.stop) == ("x",)
