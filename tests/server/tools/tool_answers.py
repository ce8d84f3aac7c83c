# ruff: noqa: E501  -- an answer is one line
"""Answers of models in every form: with what they call, and some that call nothing."""

from __future__ import annotations

from readings import Call

W, F = "get_weather", "f"
CITY = '{"city": "Säul </tool_call> \\" {"}'
ANSWERS: list[tuple[str, str, str, list[Call]]] = [
    ("hermes", f'<tool_call>\n{{"name": "{W}", "arguments": {CITY}}}\n</tool_call>', "", [(W, CITY)]),
    (
        "hermes",
        f'Let me see.\n\n<tool_call>\n{{"arguments": {{}}, "name": "f"}}\n</tool_call>\n<tool_call>{{"name":"{W}"}}</tool_call>\n',
        "Let me see.",
        [(F, "{}"), (W, "{}")],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call> done', "done", [(F, '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', "", [(F, '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, {"b": -2.5e+3}, null, tr', "", [(F, '{"a": [1, {"b": -2.5e+3}, null, tr')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call> x', "x", [(F, '{"a": oops}}')]),
    ("hermes", '\n{"name": "f", "arguments": {"a": 1}}', "", [(F, '{"a": 1}')]),
    ("qwen_xml", "I see.\n<tool_call>\n<function=f>\n<parameter=a>\nx\n<b>\n</parameter>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>", "I see.", [(F, '{"a": "x\\n<b>", "n": 7}')]),
    ("qwen_xml", f"<tool_call><function={W}></function></tool_call>\n<tool_call>\n<function=f>\n<parameter=n>\nseven\n</parameter>\n</function>\n</tool_call>", "", [(W, "{}"), (F, '{"n": "seven"}')]),
    ("mistral", f'[TOOL_CALLS] [{{"name": "{W}", "arguments": {{"a": "]"}}, "id": "abcdefghi"}}, {{"name": "f", "arguments": {{}}}}]', "", [(W, '{"a": "]"}'), (F, "{}")]),
    ("mistral", f'Sure.[TOOL_CALLS]f[ARGS]{{"a": "[TOOL_CALLS]"}}[TOOL_CALLS]{W}[CALL_ID]x1[ARGS]{{}}', "Sure.", [(F, '{"a": "[TOOL_CALLS]"}'), (W, "{}")]),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": no}[TOOL_CALLS]f[ARGS]{}', "", [(F, '{"a": no}'), (F, "{}")]),
    ("tool_calls", '<tool_calls>[{"name": "f", "arguments": {}}, {"name": "f", "arguments": {"a": "2"}}]</tool_calls>', "", [(F, "{}"), (F, '{"a": "2"}')]),
    ("tool_calls", '<tool_calls>\n{"name": "f", "arguments": {}}\n{"name": "f", "arguments": {"a": "2"}}\n</tool_calls>', "", [(F, "{}"), (F, '{"a": "2"}')]),
    ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>', "", [(F, "{}")]),
    ("cohere", '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": "b"}}\n]<|END_ACTION|>', "", [(F, '{"a": "b"}')]),
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {}}]', "", [(F, "{}")]),
    ("gigachat", '<|function_call|>{"name": "f", "arguments": {}}', "", [(F, "{}")]),
    ("functionary", '<function=f>{"a": "b"}</function><function=get_weather>{}</function>', "", [(F, '{"a": "b"}'), (W, "{}")]),
    ("kimi", "ok<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", "ok", [(F, "{}"), (F, "{}")]),
    ("lfm2", "<|tool_call_start|>[f(a='it''s', n=3), get_weather(place={'x': [1, None, True]})]<|tool_call_end|>", "", [(F, '{"a": "its", "n": 3}'), (W, '{"place": {"x": [1, null, true]}}')]),
    ("llama3", f'{{"name": "{W}", "parameters": {CITY}}}', "", [(W, CITY)]),
    ("llama3", '\n{"type": "function", "name": "f", "parameters": null}; {"name": "f", "parameters": {"a": "b"}}', "", [(F, "{}"), (F, '{"a": "b"}')]),
    ("llama3", '<|python_tag|>{"type": "function", "function": {"name": "f", "parameters": {}}}', "", [(F, "{}")]),
    ("gemma", "```tool_code\nprint(default_api.f(a=\"x)\", n=-1))\n```", "", [(F, '{"a": "x)", "n": -1}')]),
    ("gemma", "[f(a='x'), get_weather()]", "", [(F, '{"a": "x"}'), (W, "{}")]),
    ("gemma", 'Of course:\n```json\n{"name": "f", "parameters": {"a": "```"}}\n```', "Of course:", [(F, '{"a": "```"}')]),
    ("gemma", '{"name": "f", "parameters": {}}', "", [(F, "{}")]),
    ("generic", '[{"name": "f", "arguments": {}}, {"name": "f", "arguments": {"a": "b"}}]', "", [(F, "{}"), (F, '{"a": "b"}')]),
    ("generic", '```\n{"name": "f", "arguments": {}}\n```\nDone.', "Done.", [(F, "{}")]),
]  # fmt: skip
TEXTS = [
    ("hermes", "  plain text, with < and <tool and <tool_call"),
    ("hermes", "<tool_call>\nnot json\n</tool_call>\n"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "surprise": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "na'),
    ("hermes", "<tool_call>{}</tool_call> <tool_call>[]</tool_call>"),
    ("hermes", 'So: {"name": "f", "arguments": {"a": 1}}'),
    ("hermes", '{"name": "Ada", "arguments": {"a": 1}}'),
    ("qwen_xml", "<tool_call>\n<function=unknown>\n</function></tool_call>"),
    ("qwen_xml", "<tool_call>\n<function=f"),
    ("mistral", "[TOOL_CALLS]unknown[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]" + "f" * 300 + "[ARGS]{}"),
    ("llama3", '{"answer": {"name": "f"}}'),
    ("llama3", "  \n[1, 2, 3]  "),
    ("llama3", 'Call {"name": "f", "parameters": {}} yourself.'),
    ("llama3", '<|python_tag|>brave_search.call(query="x")'),
    ("gemma", "```python\nimport os\nprint(1)\n```\n"),
    ("gemma", "[f(1, 2)] and [f(**x)] and f(a=g())"),
    ("gemma", "```tool_code\nf(a=open('x'))\n```"),
    ("generic", '```json\n{"result": [1, 2]}\n```'),
    ("generic", "```"),
]
