"""Renders chat templates in a sandbox, with what Hugging Face's renderer offers them. It encodes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from octavo.errors import InvalidRequest

# What a template's own expressions may raise on data they did not expect.
_EXPRESSION_ERRORS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
_PROBE = "probe-of-octavo"


_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "tool", "description": "a tool", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True)
class ToolCallStyle:
    """How a template wants a message with tool calls."""

    text_arguments: bool = False  # arguments as JSON text: a mapping would be printed as Python writes it
    null_content: bool = False  # missing content as null: the template asks for that to find tool calls


_TOOL_CALL_STYLES = tuple(ToolCallStyle(text, null) for null in (False, True) for text in (False, True))


class TemplateRefusal(TemplateError):
    """A template called `raise_exception`; the message is the template's own."""


class _GenerationTag(Extension):
    """`{% generation %}`: marks assistant text for training elsewhere, here only a scope of its own."""

    tags = {"generation"}  # noqa: RUF012  -- declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _TemplateNamespace(Namespace):
    """A namespace whose attributes cannot pose as Python internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` stays free as a name
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_attribute(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses an unsafe attribute where it is named, not only where its value is used."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} is unsafe")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face defines the filter: no HTML escapes, raw Unicode, keys in order of insertion."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _sandbox() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_TemplateNamespace
    )
    return environment


class ChatTemplate:
    """One template of a model. Compiled when first used, so that a broken one does not keep a model from loading."""

    def __init__(self, source: str, special_texts: Mapping[str, str]) -> None:
        """`special_texts` are variables such as bos_token."""
        self.source = source
        self._special_texts = dict(special_texts)

    def render(
        self, messages: Sequence[Any], *, tools: Sequence[Any] | None, add_generation_prompt: bool, **variables: Any
    ) -> str:
        """The conversation as text. Messages and tools must be plain data already.

        Raises InvalidRequest with the template's own message if it refuses or fails.
        """
        try:
            return self._render(messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables)
        except TemplateRefusal as error:
            raise InvalidRequest(f"the model's chat template refused the conversation: {error}") from error
        except TemplateSyntaxError as error:
            raise InvalidRequest(
                f"the model's chat template is broken (line {error.lineno}: {error.message}); use --raw"
            ) from error
        except (TemplateError, *_EXPRESSION_ERRORS) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InvalidRequest(f"the model's chat template failed on the conversation: {reason}") from error

    @cached_property
    def takes_strings(self) -> bool:
        """Whether content that is text reaches the rendering."""
        return _PROBE in self._probe([{"role": "user", "content": _PROBE}])

    @cached_property
    def takes_parts(self) -> bool:
        """Whether content that is a list of text parts reaches the rendering as text."""
        rendered = self._probe([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        return _PROBE in rendered and "'type'" not in rendered and '"type"' not in rendered

    @cached_property
    def tool_calls(self) -> ToolCallStyle:
        """The shape in which tool calls reach the rendering whole; mappings beside empty text if none is known to."""
        return next(filter(self._renders_tool_calls, _TOOL_CALL_STYLES), _TOOL_CALL_STYLES[0])

    def _renders_tool_calls(self, style: ToolCallStyle) -> bool:
        question: Any = "question" if self.takes_strings else [{"type": "text", "text": "question"}]
        arguments = {_PROBE: "x"}
        function = {"name": "tool", "arguments": json.dumps(arguments) if style.text_arguments else arguments}
        call = {"type": "function", "id": "abcdefghi", "function": function}
        rendered = self._probe(
            [
                {"role": "user", "content": question},
                {"role": "assistant", "content": None if style.null_content else "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "abcdefghi", "name": "tool", "content": "answer"},
            ]
        )
        return _PROBE in rendered and f"{{'{_PROBE}'" not in rendered and "None" not in rendered

    def _probe(self, messages: list[Any]) -> str:
        """The rendering, or nothing if the template does not like such messages, with tools or without."""
        for tools in (None, [_PROBE_TOOL]):
            try:
                return self._render(messages, tools=tools, add_generation_prompt=False)
            except (TemplateError, *_EXPRESSION_ERRORS):
                continue
        return ""

    def _render(self, messages: Sequence[Any], **variables: Any) -> str:
        values = {"documents": None, **self._special_texts, **variables}
        return self._compiled.render(messages=messages, **values)

    @cached_property
    def _compiled(self) -> Template:
        return _sandbox().from_string(self.source)
