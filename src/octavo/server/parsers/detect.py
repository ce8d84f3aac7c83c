"""Finds out from a model's chat template in which form it writes calls and thinking. Nothing else tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequest
from octavo.server.parsers.events import Arguments, CallStart, ToolParser
from octavo.server.parsers.forms import FORMS, Form
from octavo.server.parsers.reasoning import THINKING, Thinking
from octavo.server.parsers.tool_calls import CallParser
from octavo.server.parsers.tool_xml import TaggedCallParser
from octavo.tokenizer import Tokenizer

_QUESTION = "probe-question"
_TOOL, _KEY, _VALUE = "probe_tool", "probe_key", "probe-value"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "a tool",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "a key"}},
            "required": [_KEY],
        },
    },
}


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """`form` is the one that reads what the template writes, None if none does; `described` says whether tools that a
    request offers reach the prompt at all.
    """

    form: Form | None
    described: bool


def parser_of(form: Form, tools: Mapping[str, Mapping[str, Any]]) -> ToolParser:
    """A parser for one answer. `tools` has the schema of its parameters by the name of each tool."""
    return TaggedCallParser(form, tools) if form.tagged else CallParser(form, tools)


def detect_tools(tokenizer: Tokenizer) -> ToolSupport:
    """Renders a conversation with a call, and looks which form reads back the call that was written."""
    described = _TOOL in _rendered(tokenizer, [_message("user")], prompt=True)
    answer = _answer(tokenizer)
    if _TOOL in answer:
        found = (form for form in FORMS.values() if _reads(form, answer))
    else:  # a template that tells how to write calls, and leaves out those of earlier turns
        source = tokenizer.chat_template or ""
        found = (form for form in FORMS.values() if form.begins[0] in source and not form.labels)
    return ToolSupport(next(found, None) if described else None, described)


def detect_thinking(tokenizer: Tokenizer) -> Thinking | None:
    """The markers that the template names, if it names any."""
    source = tokenizer.chat_template or ""
    written = (each for each in THINKING.values() if each.end in source)
    return next(written, None)


def _answer(tokenizer: Tokenizer) -> str:
    """What the template has a model say that calls the probe; empty if it cannot be told."""
    function = {"name": _TOOL, "arguments": f'{{"{_KEY}": "{_VALUE}"}}'}
    call = {"id": "probecall", "type": "function", "function": function}
    question = _message("user")
    whole = _rendered(tokenizer, [question, {"role": "assistant", "tool_calls": [call]}], prompt=False)
    before = _rendered(tokenizer, [question], prompt=True)
    if whole.startswith(before):
        return whole[len(before) :]
    return whole.rpartition(_QUESTION)[2]


def _message(role: str) -> dict[str, str]:
    return {"role": role, "content": _QUESTION}


def _rendered(tokenizer: Tokenizer, messages: list[Any], *, prompt: bool) -> str:
    try:
        return tokenizer.render_chat(messages, tools=[_PROBE_TOOL], add_generation_prompt=prompt)
    except InvalidRequest:
        return ""


def _reads(form: Form, answer: str) -> bool:
    if not form.bare and form.begins[0] not in answer:
        return False
    parser = parser_of(form, {_TOOL: {"properties": {_KEY: {"type": "string"}}}})
    events = [*parser.push(answer), *parser.finish()]
    names = [event.name for event in events if isinstance(event, CallStart)]
    arguments = "".join(event.fragment for event in events if isinstance(event, Arguments))
    return names == [_TOOL] and arguments.replace(" ", "") == f'{{"{_KEY}":"{_VALUE}"}}'
