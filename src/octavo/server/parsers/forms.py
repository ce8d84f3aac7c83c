"""The forms in which models write calls of tools, as a table. Who reads them lies in tool_calls.py and tool_xml.py."""

from __future__ import annotations

from dataclasses import dataclass

_NAME = r"(?P<name>[a-zA-Z0-9_-]+)"


@dataclass(frozen=True, slots=True)
class Form:
    """Calls stand behind one of `begins`, as JSON objects or lists of such, up to `end` if there is one.

    `opening` and `closing` may stand around several of them. `bare`: the answer may begin with the JSON itself.
    `lenient`: an answer that does so is read as calls, although it should have a marker, which small models forget.
    `labels`: words that may stand between a marker and the JSON, as behind the fence of a code block. `head`: what
    stands between a marker and `separator` where the name comes first and its arguments behind that. `pythonic`: calls
    may be written as Python writes them. `tagged`: each argument stands between tags of its own.

    How calls are to be written in this form: `keys` are what an object calls the name and the arguments, `listed` if
    several share one list between the markers, `padded` if line feeds stand at the markers.
    """

    name: str
    begins: tuple[str, ...]
    end: str = ""
    opening: str = ""
    closing: str = ""
    bare: bool = False
    lenient: bool = False
    labels: tuple[str, ...] = ()
    head: str = ""
    separator: str = ""
    pythonic: bool = False
    tagged: bool = False
    keys: tuple[str, str] = ("name", "arguments")
    listed: bool = False
    padded: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """All that may begin a call in the midst of text."""
        return (*self.begins, self.opening) if self.opening else self.begins

    @property
    def words(self) -> tuple[str, ...]:
        """All the markers, some of which may be control tokens."""
        own = (*self.markers, self.end, self.closing, self.separator)
        return tuple(word for word in own if word)


_TABLE = (
    Form("hermes", ("<tool_call>",), "</tool_call>", lenient=True, padded=True),
    Form("qwen_xml", ("<tool_call>",), "</tool_call>", tagged=True, padded=True),
    Form("mistral", ("[TOOL_CALLS]",), head=_NAME + r"(\[CALL_ID\][a-zA-Z0-9_-]*)?", separator="[ARGS]", listed=True),
    Form("tool_calls", ("<tool_calls>",), "</tool_calls>", listed=True),
    Form("nemotron", ("<TOOLCALL>",), "</TOOLCALL>", listed=True),
    Form("cohere", ("<|START_ACTION|>",), "<|END_ACTION|>", keys=("tool_name", "parameters"), listed=True),
    Form("granite", ("<|tool_call|>",), listed=True),
    Form("gigachat", ("<|function_call|>",)),
    Form("functionary", ("<function=",), "</function>", head=_NAME, separator=">"),
    Form(
        "kimi",
        ("<|tool_call_begin|>",),
        "<|tool_call_end|>",
        opening="<|tool_calls_section_begin|>",
        closing="<|tool_calls_section_end|>",
        head=r"\s*(functions\.)?" + _NAME + r"(:[0-9]+)?\s*",
        separator="<|tool_call_argument_begin|>",
    ),
    Form("lfm2", ("<|tool_call_start|>",), "<|tool_call_end|>", pythonic=True, listed=True),
    Form("llama3", ("<|python_tag|>",), bare=True, keys=("name", "parameters")),
    Form(
        "gemma",
        ("```",),
        "```",
        bare=True,
        labels=("tool_code", "tool_call", "json", "python"),
        pythonic=True,
        keys=("name", "parameters"),
    ),
    Form("generic", ("```",), "```", bare=True, labels=("json", "tool_call")),
)
FORMS = {form.name: form for form in _TABLE}
# These can be asked of a model whose template knows no tools, by a message that describes them.
PROMPTED = frozenset({"generic", "gemma"})
