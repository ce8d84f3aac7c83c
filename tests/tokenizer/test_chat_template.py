"""The template sandbox: what it offers, what it refuses, and the shape of messages it asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tiny_tokenizers import byte_level_metadata

from octavo.errors import InvalidRequest
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat_template import ChatTemplate

USER = {"role": "user", "content": "hi"}


def render(template: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(chat_template=template))
    return tokenizer.render_chat([USER] if messages is None else messages, **options)


def test_strftime_now_formats_the_current_time() -> None:
    assert render("{{ strftime_now('%%%Y')[:3] }}").startswith("%2")


def test_tojson_prints_raw_unicode_without_html_escapes_in_order_of_insertion() -> None:
    tool = {"type": "function", "zeta": "날씨 a/b it's <b> & more", "alpha": [1, {"k": None}]}
    assert render("{{ tools[0] | tojson }}", tools=[tool]) == json.dumps(tool, ensure_ascii=False)
    assert render("{{ tools[0] | tojson(indent=2) }}", tools=[tool]) == json.dumps(tool, ensure_ascii=False, indent=2)


def test_special_tokens_and_further_variables_reach_the_template() -> None:
    assert render("{{ bos_token }}|{{ eos_token }}|{{ mood }}", mood="calm") == "<|endoftext|>|<|im_end|>|calm"


def test_a_template_that_refuses_gives_its_own_message_as_an_invalid_request() -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"
    assert render(template) == "ok"
    with pytest.raises(InvalidRequest, match="System role not supported"):
        render(template, [{"role": "system", "content": "x"}, USER])


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__",
        "''.__class__.__mro__",
        "messages.append(1)",
        "messages[0].update(a=1)",
        "messages | attr('__class__')",
        "namespace(__class__=1)",
        "raise_exception.__globals__",
        "'{0.__class__}'.format('')",
    ],
)
def test_what_a_template_must_not_touch_is_refused(expression: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        render("{{ " + expression + " }}")


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ missing.field }}", "{{ messages[0].content + 1 }}"])
def test_a_template_that_fails_is_an_invalid_request_of_one_line(template: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template failed") as failure:
        render(template)
    assert "\n" not in str(failure.value)


def test_a_broken_template_lets_the_model_load_and_is_named_when_used() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(chat_template="{% for %}"))
    assert tokenizer.encode("the")
    with pytest.raises(InvalidRequest, match=r"broken \(line 1.*--raw"):
        tokenizer.render_chat([USER])


def test_a_model_without_a_template_says_so_and_names_the_remedy() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(chat_template=None))
    assert tokenizer.chat_template is None
    with pytest.raises(InvalidRequest, match=r"no chat template.*--raw"):
        tokenizer.encode_chat([USER])


def test_the_tool_template_is_taken_when_tools_are_given() -> None:
    metadata = byte_level_metadata(chat_template="plain") | {"tokenizer.chat_template.tool_use": "tools"}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.render_chat([USER]) == "plain"
    assert tokenizer.render_chat([USER], tools=[{"type": "function"}]) == "tools"


# Messages


@pytest.mark.parametrize("messages", [[], "hi", None])
def test_no_messages_are_an_invalid_request(messages: Any) -> None:
    with pytest.raises(InvalidRequest, match="messages is empty or not a list"):
        Tokenizer.from_gguf(byte_level_metadata()).render_chat(messages)


@pytest.mark.parametrize("message", ["hi", {"content": "hi"}, {"role": 3, "content": "hi"}])
def test_a_message_without_a_role_is_named_by_its_place(message: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\] has no role"):
        Tokenizer.from_gguf(byte_level_metadata()).render_chat([USER, message])


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_null_and_absent_content_render_as_empty_text(message: dict[str, Any]) -> None:
    assert render("{% for m in messages %}[{{ m.content }}]{% endfor %}", [USER, message]) == "[hi][]"


def test_text_parts_reach_a_template_of_strings_joined_in_order() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    message = {"role": "user", "content": parts}
    assert render("{% for m in messages %}{{ '>' + m.content }}{% endfor %}", [message]) == ">one\ntwo"


def test_text_parts_reach_a_template_of_parts_as_parts_and_strings_are_wrapped_for_it() -> None:
    template = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render(template, [{"role": "user", "content": parts}]) == "(one)(two)"
    assert render(template, [{"role": "user", "content": "one"}]) == "(one)"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], r"messages\[0\].content\[0\] has type 'image_url'"),
        ([{"type": "text"}], r"messages\[0\].content\[0\].text is NoneType"),
        ([3], r"messages\[0\].content\[0\] has type 'int'"),
        (3, r"messages\[0\].content is int"),
    ],
)
def test_content_that_is_not_text_is_refused_by_its_type(content: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        render("{{ messages }}", [{"role": "user", "content": content}])


def call(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "add", "arguments": arguments}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}]


ITEMS = (
    "{% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}"
    "{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}"
)
PRINTED = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson if "
    "c.function.arguments is mapping else c.function.arguments }}{% endfor %}{% endfor %}"
)


def test_tool_call_arguments_in_json_are_a_mapping_for_the_template() -> None:
    assert render(ITEMS, call('{"b": 2, "a": "é"}')) == "b=2;a=é;"
    assert render(ITEMS, call({"b": 2})) == "b=2;"


@pytest.mark.parametrize("arguments", ["{not json", "[1]"])
def test_tool_call_arguments_that_are_no_json_object_stay_text(arguments: str) -> None:
    assert render(PRINTED, call(arguments)) == arguments


def test_a_template_that_prints_arguments_as_they_are_gets_json_text() -> None:
    template = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    assert render(template, call({"a": "é"})) == '{"a": "é"}'
    assert render(template, call('{"a":1}')) == '{"a":1}'


def test_a_template_that_finds_tool_calls_by_null_content_gets_null() -> None:
    template = (
        "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert render(template, call({"a": 1})) == 'hi{"a": 1}'


def test_messages_are_not_changed_by_rendering() -> None:
    messages = call('{"a": 1}')
    before = json.dumps(messages)
    render(ITEMS, messages)
    assert json.dumps(messages) == before


def test_values_that_are_not_json_are_refused_by_their_type() -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\] holds a set"):
        render("x", [{"role": "user", "content": "x", "extra": {1}}])
    with pytest.raises(InvalidRequest, match="mood holds a object"):
        render("x", mood=object())


def test_probing_a_template_needs_no_conversation_it_likes() -> None:
    template = ChatTemplate("{{ raise_exception('never') }}", {})
    assert not template.takes_strings and not template.takes_parts
