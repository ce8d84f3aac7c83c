"""Writes the grammar that holds an answer to calls of tools, in the form that the model itself would use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.grammar_spec import GrammarSpec
from octavo.server.parsers.forms import Form
from octavo.server.parsers.reasoning import Thinking
from octavo.server.parsers.tool_calls import ARGUMENT_KEYS, NAME_KEYS, OTHER_KEYS

_SPACE = r"[ \n]{0,8}"  # of bare calls, which are laid out as the model likes

# How a marker is tokenized: its parts, each a text or the id of a control token.
Pieces = Callable[[str], Sequence[str | int]]


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A function that a request offers. `parameters` is the JSON schema of its arguments, an object."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class BeforeCalls:
    """`text`: anything may be said instead of calls, and before them. `thinking` may stand first; `begun` if the prompt
    ends within it.
    """

    text: bool = False
    thinking: Thinking | None = None
    begun: bool = False


def tool_grammar(
    tools: Sequence[OfferedTool], form: Form, before: BeforeCalls, pieces: Pieces, *, parallel: bool
) -> GrammarSpec:
    """Calls of `tools`, at least one unless text is allowed, and no more than one unless they may be `parallel`.

    Raises `InvalidRequest` if it is too long. Schemas that cannot be enforced are found when it is compiled.
    """
    return GrammarSpec.grammar(_Writer(form, pieces).written(tools, before, parallel))


class _Writer:
    """Rules in Lark as llguidance takes it. No text in them has `::=`, by which GBNF is told."""

    def __init__(self, form: Form, pieces: Pieces) -> None:
        self._form = form
        self._pieces = pieces
        self._rules: list[str] = []

    def written(self, tools: Sequence[OfferedTool], before: BeforeCalls, parallel: bool) -> str:
        form = self._form
        if form.bare:
            start = self._bare(tools, parallel)
            if before.text:
                start = f"({start} | {self._unlike_calls(before)}?)"
            start = f"{self._thinking(before)} {start}"
        else:
            first, rest = form.opening or form.begins[0], self._after_marker(tools, parallel)
            if before.text and form.lenient:
                start = self._with_bare_calls(tools, before, parallel, first, rest)
            elif before.text:  # thinking is text, too
                start = f"{self._beside_text(before)} ({self._up_to('leading', first)} {rest} | TEXT)"
            else:
                start = f"{self._thinking(before)} {self._word(first)} {rest}"
        rules = dict.fromkeys(["%llguidance {}", f"start: {start}", *self._rules])
        return "\n".join([*rules, "TEXT: /(?s:.*)/", r"WS: /[ \n]{0,2}/"])

    def _thinking(self, before: BeforeCalls) -> str:
        if before.thinking is None:
            return ""
        thinking = f"{self._up_to('thinking', before.thinking.end)} WS"
        return thinking if before.begun else f"({self._word(before.thinking.begin)} {thinking})?"

    def _beside_text(self, before: BeforeCalls) -> str:
        """Control tokens around the thinking, and text before each."""
        markers = (before.thinking.begin, before.thinking.end) if before.thinking else ()
        tokens = [f"<[{piece}]>" for marker in markers for piece in self._pieces(marker) if isinstance(piece, int)]
        return f"(TEXT ({' | '.join(tokens)}))*" if tokens else ""

    def _unlike_calls(self, before: BeforeCalls) -> str:
        """Text that begins neither like a call nor like thinking."""
        marker = before.thinking.begin if before.thinking and not before.begun else ""
        self._rules.append(rf"SAID: /[^{{\[\s`{re.escape(marker[:1])}](?s:.*)/")
        return "SAID"

    def _up_to(self, rule: str, marker: str, text: str = "TEXT") -> str:
        """A rule for `text` up to the first `marker`, and that."""
        is_text = all(isinstance(piece, str) for piece in self._pieces(marker))
        self._rules.append(f"{rule}{'[lazy]' if is_text else ''}: {text} {self._word(marker)}")
        return rule

    def _with_bare_calls(
        self, tools: Sequence[OfferedTool], before: BeforeCalls, parallel: bool, first: str, rest: str
    ) -> str:
        """Text, in which calls stand behind the marker `first`, or what is said begins with the JSON of calls.

        Text and the head of a bare call are told apart by the lexer alone: text is what does not begin like a call, so
        at the name of a tool only the head is left.
        """
        thinking = before.thinking
        begin = "" if thinking is None else self._control(thinking.begin)
        end = "" if thinking is None else self._control(thinking.end)
        thought = ""  # thinking between markers that are text is part of what is told apart
        if thinking is not None and not end:
            thought, last = "THOUGHT", _text(thinking.end)
            lead = "" if before.begun else rf"/\s*/ {_text(thinking.begin)}"
            self._rules.append(f"BEFORE_END: TEXT & ~(TEXT {last} TEXT)")
            self._rules.append(f"THOUGHT: ({lead} BEFORE_END {last}){'' if before.begun else '?'}")
        self._rules.append(rf"SAID: TEXT & ~({thought} /{_like_a_call(tools)}(?s:.*)/)")
        calls = self._bare_calls(tools, thought, parallel)
        said = f"({calls} | {self._up_to('leading', first, 'SAID')} {rest} | SAID)"
        if not end:
            return said
        start = f"(SAID {begin} TEXT {end})* ({said} | SAID {begin} TEXT)" if begin else f"(SAID {end})* {said}"
        return f"TEXT {f'({begin} TEXT)?' if begin else ''} ({end} {start})?" if before.begun else start

    def _control(self, marker: str) -> str:
        """A marker that is one control token; else nothing."""
        match self._pieces(marker):
            case [int(piece)]:
                return f"<[{piece}]>"
        return ""

    def _bare_calls(self, tools: Sequence[OfferedTool], thought: str, parallel: bool) -> str:
        """Calls without a marker, one behind the other or in a list; `thought` may stand before the first."""
        heads = {"FIRST": (thought, _SPACE), "LISTED": (thought, rf"{_SPACE}\[{_SPACE}"), "NEXT": ("", _SPACE)}
        for kind, (leading, space) in heads.items():
            for number, tool in enumerate(tools):
                self._rules.append(f"{kind}_{number}: {leading} /{space}{_head_of(tool, self._form.keys)}/")
                self._rules.append(f"{kind.lower()}_{number}: {kind}_{number} {self._schema(tool, number)} CALL_END")
            self._rules.append(
                f"{kind.lower()}: {' | '.join(f'{kind.lower()}_{number}' for number in range(len(tools)))}"
            )
        self._rules += [rf"CALL_END: /{_SPACE}\}}/", rf"LIST_END: /{_SPACE}\]/", rf"COMMA: /{_SPACE},/"]
        if not parallel:
            return "(first | listed LIST_END)"
        return "(first next* | listed (COMMA next)* LIST_END)"

    def _bare(self, tools: Sequence[OfferedTool], parallel: bool) -> str:
        call = self._any("object", tools, self._object)
        if self._form.begins == ("<|python_tag|>",):
            return f'{call} ("; " {call})*' if parallel else call
        return f'({call} | "[" {call} ("," WS {call})* "]")' if parallel else call

    def _after_marker(self, tools: Sequence[OfferedTool], parallel: bool) -> str:
        """What follows the first marker, to the end of all calls."""
        form = self._form
        begin, end = self._word(form.begins[0]), self._word(form.end)
        pad = '"\\n"' if form.padded else ""
        if form.tagged:
            one = f"{pad} {self._any('tags', tools, self._tags)} {pad} {end}"
        elif form.head:
            one = f"{self._any('head', tools, self._head)} {end}"
        else:
            one = f"{pad} {self._any('object', tools, self._object)} {pad} {end}"
        calls = f"{one} ({pad} {begin} {one})*" if parallel else one
        if form.listed:
            item = self._any("object", tools, self._object)
            several = f'("," WS {item})*' if parallel else ""
            listed = f'"[" {item} {several} "]" {end}'
            calls = f"({listed} | {calls})" if form.head else listed
        return f"{begin} {calls} {self._word(form.closing)}" if form.opening else calls

    def _any(self, kind: str, tools: Sequence[OfferedTool], write: Callable[[OfferedTool, int], str]) -> str:
        """A rule that is any of the tools, as `write` writes them."""
        self._rules += [f"{kind}_{number}: {write(tool, number)}" for number, tool in enumerate(tools)]
        self._rules.append(f"{kind}: {' | '.join(f'{kind}_{number}' for number in range(len(tools)))}")
        return kind

    def _object(self, tool: OfferedTool, number: int) -> str:
        name, arguments = self._form.keys
        return (
            f'{_text(f"{{{_text(name)}: {_text(tool.name)}, {_text(arguments)}: ")} {self._schema(tool, number)} "}}"'
        )

    def _head(self, tool: OfferedTool, number: int) -> str:
        name = _text(f"functions.{tool.name}:{number}" if self._form.name == "kimi" else tool.name)
        return f"{name} {self._word(self._form.separator)} {self._schema(tool, number)}"

    def _schema(self, tool: OfferedTool, number: int) -> str:
        options = {"whitespace_flexible": True, "whitespace_pattern": " ?", "lenient": not tool.strict}
        self._rules.append(f"arguments_{number}: {_json({**tool.parameters, 'type': 'object', 'x-guidance': options})}")
        return f"arguments_{number}"

    def _tags(self, tool: OfferedTool, number: int) -> str:
        properties = tool.parameters.get("properties") or {}
        required = tool.parameters.get("required") or []
        tags = [_text(f"<function={tool.name}>\n")]
        for place, (key, schema) in enumerate(properties.items()):
            value = self._value(schema, f"value_{number}_{place}", tool.parameters)
            tag = f"{_text(f'<parameter={key}>' + chr(10))} {value}"
            tags.append(tag if key in required else f"({tag})?")
        return " ".join([*tags, '"</function>"'])

    def _value(self, schema: Any, rule: str, root: Mapping[str, Any]) -> str:
        """An argument between its tags, and the tag behind it. Texts go up to that tag, whatever they hold."""
        fields = schema if isinstance(schema, Mapping) else {}
        texts = [each for each in fields.get("enum", ()) if isinstance(each, str)]
        behind = _text("\n</parameter>\n")
        if texts:
            return f"({' | '.join(map(_text, texts))}) {behind}"
        if fields.get("type", "string") == "string":
            self._rules.append(f"text_value[lazy]: TEXT {behind}")
            return "text_value"
        shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        self._rules.append(f"{rule}: {_json({**shared, **fields, 'x-guidance': {'lenient': True}})}")
        return f"{rule} {behind}"

    def _word(self, marker: str) -> str:
        """A marker as the model writes it: control tokens by their ids, the rest as text."""
        return " ".join(f"<[{piece}]>" if isinstance(piece, int) else _text(piece) for piece in self._pieces(marker))


def _like_a_call(tools: Sequence[OfferedTool]) -> str:
    """A regular expression for how an answer begins that `CallParser` may read as calls without a marker."""
    names = "|".join(re.escape(tool.name) for tool in tools)
    passed = rf'"({"|".join(OTHER_KEYS)})"\s*:\s*("([^"\\]|\\.)*"|[^",{{}}\[\]\s]*)\s*,\s*'
    escaped = r'"[^"\\]*\\'  # which may spell anything
    name = rf'"({"|".join(NAME_KEYS)})"\s*:\s*("({names})"|\{{|{escaped})'
    return rf'\s*(\[\s*)?\{{\s*({passed})*({name}|"({"|".join(ARGUMENT_KEYS)})"\s*:|{escaped})'


def _head_of(tool: OfferedTool, keys: tuple[str, str]) -> str:
    """A regular expression for a bare call up to its arguments."""
    name, arguments = keys
    return (
        rf'\{{{_SPACE}"{name}"{_SPACE}:{_SPACE}"{re.escape(tool.name)}"{_SPACE},{_SPACE}"{arguments}"{_SPACE}:{_SPACE}'
    )


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {_text(schema)}"


def _text(value: str | Mapping[str, Any]) -> str:
    """As JSON, which is how Lark writes texts, too."""
    return json.dumps(value, ensure_ascii=False).replace("::=", "\\u003a:=")
