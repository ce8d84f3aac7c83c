"""Chat templates render byte for byte as transformers' own renderer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template
from vocab_oracle import data_root, require_data

from octavo.errors import InvalidRequest
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.messages import normalize_messages, normalize_tools

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "날씨 a/b it's <b>cold</b> & more",
        "parameters": {
            "type": "object",
            "properties": {"zeta": {"type": "string", "description": "place"}, "alpha": {"type": "integer"}},
            "required": ["zeta"],
        },
    },
}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"zeta": "Säul", "alpha": 2}'},
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one user": [{"role": "user", "content": "Hi there"}],
    "system and turns": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "What is 2 < 3 & 'x'?"},
        {"role": "assistant", "content": "yes\n"},
        {"role": "user", "content": "ok é 漢"},
    ],
    "reasoning": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\na", "reasoning_content": "hm"},
        {"role": "user", "content": "q2"},
    ],
    "tool call": [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "5"},
    ],
    "text parts": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
    "assistant first": [{"role": "assistant", "content": "x"}],
    "two users": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}],
    "unknown role": [{"role": "oracle", "content": "x"}],
}
DIALECT = """{% set ns = namespace(n=0) %}
  {% for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {% if ns.n == 2 %}{% break %}{% endif %}
    {% set ns.n = ns.n + 1 %}
    {% generation %}
    {% set inner = m.content %} {{ inner | trim | tojson }};
    {%- endgeneration %}
    {{ inner is defined }}
  {% endfor %}
{{ ns.n }} {{ strftime_now('%Y') }} {{ dict(a=1) | items | list }} {{ tools | tojson(indent=2) if tools }}
"""


def template_files() -> list[Path | None]:
    return [*sorted((data_root() / "templates").glob("*.jinja"))] or [None]


def theirs(source: str, messages: list[Any], **variables: Any) -> str | None:
    """transformers' rendering, or None where the template fails."""
    try:
        rendered = _compile_jinja_template(source).render(messages=messages, documents=None, **variables, **SPECIAL)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError):
        return None
    return str(rendered)


def fitted(template: ChatTemplate, conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return normalize_messages(
        conversation,
        takes_strings=template.takes_strings,
        takes_parts=template.takes_parts,
        text_arguments=template.tool_calls.text_arguments,
        null_content=template.tool_calls.null_content,
    )


def assert_renders_alike(source: str, conversation: list[dict[str, Any]]) -> None:
    template = ChatTemplate(source, SPECIAL)
    messages = fitted(template, conversation)
    for tools in (None, normalize_tools([TOOL])):
        for prompt in (True, False):
            expected = theirs(source, messages, tools=tools, add_generation_prompt=prompt)
            if expected is None:
                with pytest.raises(InvalidRequest):
                    template.render(messages, tools=tools, add_generation_prompt=prompt)
            else:
                assert template.render(messages, tools=tools, add_generation_prompt=prompt) == expected


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_all_that_the_dialect_offers_renders_as_in_transformers(name: str) -> None:
    assert theirs(DIALECT, normalize_messages(CONVERSATIONS[name], takes_strings=True, takes_parts=False), tools=None)
    assert_renders_alike(DIALECT, CONVERSATIONS[name])


@pytest.mark.weights
@pytest.mark.parametrize("file", template_files(), ids=lambda file: file.stem if file else "absent")
def test_a_real_template_renders_as_in_transformers(file: Path | None) -> None:
    require_data()
    assert file is not None
    source = file.read_text(encoding="utf-8")
    for conversation in CONVERSATIONS.values():
        assert_renders_alike(source, conversation)


@pytest.mark.weights
@pytest.mark.parametrize(
    "name",
    ["Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "MiniMax-M2"],
)
def test_real_templates_show_every_text_of_a_tool_conversation_and_never_none(name: str) -> None:
    source = (require_data() / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, SPECIAL)
    messages = fitted(template, CONVERSATIONS["tool call"])
    rendered = template.render(messages, tools=normalize_tools([TOOL]), add_generation_prompt=True)
    assert "None" not in rendered
    assert all(text in rendered for text in ("get_weather", "Säul", "weather", "5"))


@pytest.mark.weights
def test_a_template_that_takes_no_system_message_refuses_it_in_its_own_words() -> None:
    source = (require_data() / "templates" / "google-gemma-2-2b-it.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, SPECIAL)
    for name, complaint in (("system and turns", "System role not supported"), ("two users", "must alternate")):
        with pytest.raises(InvalidRequest, match=complaint):
            template.render(CONVERSATIONS[name], tools=None, add_generation_prompt=True)
