"""Offers tools in a message, to a model whose template knows none, and writes calls and results as plain messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequest
from octavo.server.parsers.forms import Form
from octavo.tokenizer import Tokenizer

_OFFER = (
    "You can call functions. To call one, answer with nothing but a JSON object of this form:\n"
    '{{"{name}": "FUNCTION", "{arguments}": {{…}}}}\n'
    "To call several, answer with a list of such objects. If no function is needed, answer in plain words.\n\n"
    "The functions, with the JSON schemas of their arguments:\n{tools}"
)


def with_tools_described(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], form: Form, tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """The conversation, beginning with what tells of `tools`: in a system message, or where the template takes none, in
    the first of the user's. Calls become the text that asks for them, results become messages of the user.
    """
    name, arguments = form.keys
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    offer = _OFFER.format(name=name, arguments=arguments, tools=listed)
    plain = _joined([_plain(message, form) for message in messages])
    has_system = bool(plain) and plain[0]["role"] == "system"
    if has_system:
        return [{**plain[0], "content": f"{_text(plain[0])}\n\n{offer}"}, *plain[1:]]
    if _takes_system(tokenizer):
        return [{"role": "system", "content": offer}, *plain]
    if plain and plain[0]["role"] == "user":
        return [{**plain[0], "content": f"{offer}\n\n{_text(plain[0])}"}, *plain[1:]]
    return [{"role": "user", "content": offer}, *plain]


def _plain(message: Mapping[str, Any], form: Form) -> dict[str, Any]:
    fields = dict(message)
    calls = fields.pop("tool_calls", None)
    if fields["role"] == "tool":
        return {"role": "user", "content": f"Result of the call {fields['tool_call_id']}:\n{_text(fields)}"}
    if calls:
        written = [_written(call["function"], form) for call in calls]
        text = written[0] if len(written) == 1 else f"[{', '.join(written)}]"
        fields["content"] = f"{_text(fields)}\n{text}".strip()
    return fields


def _written(function: Mapping[str, Any], form: Form) -> str:
    name, arguments = form.keys
    return f'{{"{name}": {json.dumps(function["name"])}, "{arguments}": {function["arguments"] or "{}"}}}'


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that follow each other, or that a user's words follow, are one message: templates want turns."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and message["role"] == "user" == joined[-1]["role"]:
            joined[-1] = {**joined[-1], "content": f"{_text(joined[-1])}\n\n{_text(message)}"}
        else:
            joined.append(message)
    return joined


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _takes_system(tokenizer: Tokenizer) -> bool:
    try:
        tokenizer.render_chat([{"role": "system", "content": "x"}, {"role": "user", "content": "x"}])
    except InvalidRequest:
        return False
    return True
