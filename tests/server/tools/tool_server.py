"""Servers over the fake engine whose template knows tools, and what they are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fake_engine import INFO, FakeEngine, byte_tokenizer

CONTROL = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TEMPLATE = (
    "{% if tools %}TOOLS {% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
)
THINKING = (
    TEMPLATE + "{% if thinking is not defined or thinking %}<think>\n{% else %}<think></think>{% endif %}{% endif %}"
)
PLAIN = TEMPLATE + "{% endif %}"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


def engine_over(reply: str, template: str | None = PLAIN, **knobs: Any) -> FakeEngine:
    """An engine that says `reply`, with room for tools in its prompts; the markers are control tokens."""
    tokenizer = byte_tokenizer(template, control=CONTROL)
    info = replace(INFO, vocab_size=tokenizer.vocab_size, max_context=8192, max_prompt_tokens=8191)
    return FakeEngine(reply=reply, model_info=info, model_tokenizer=tokenizer, **knobs)


def prompt_of(engine: FakeEngine) -> str:
    """The text of the prompt that came last."""
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
