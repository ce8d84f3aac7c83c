"""How the answers of one chat call are asked for and read: tools in the prompt, a grammar, a reader per choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import InvalidRequest
from octavo.sampling_params import SamplingParams
from octavo.server.answer_forms import AnswerForms, ToolForm
from octavo.server.choice_reader import ChoiceReader
from octavo.server.errors import invalid
from octavo.server.parsers.detect import parser_of
from octavo.server.parsers.reasoning import ReasoningParser, Thinking
from octavo.server.parsers.tool_grammar import BeforeCalls, OfferedTool, tool_grammar
from octavo.server.protocol.chat import ChatRequest
from octavo.server.tool_prompt import with_tools_described
from octavo.tokenizer import Tokenizer

_TAIL_TOKENS = 32  # of a prompt, among which a marker at its end is looked for


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """`tools` is None where none are offered, `thinking` where it is not parted from the answer."""

    request: ChatRequest
    tokenizer: Tokenizer
    tools: ToolForm | None
    thinking: Thinking | None
    reads_stops: bool = False

    @property
    def parts_answers(self) -> bool:
        """Whether an answer is read: it can be more than content, or is to tell what stopped it."""
        return self.tools is not None or self.thinking is not None or self.reads_stops

    @property
    def _holds_calls(self) -> bool:
        """Whether calls are held to a grammar."""
        return self.request.must_call or any(tool.function.strict for tool in self.request.callable_tools)

    def conversation(self, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """The messages, and the tools for the template unless the messages tell of them now."""
        if self.tools is None:
            return messages, None
        told = []
        for tool in self.request.offered_tools:
            function = tool.function.model_dump(exclude_none=True, exclude={"strict"})
            told.append({"type": "function", "function": {"parameters": {"type": "object"}, **function}})
        if self.tools.described:
            return messages, told
        return with_tools_described(messages, told, self.tools.form, self.tokenizer), None

    def thinks_already(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt ends within the thinking, as some templates have it."""
        if self.thinking is None:
            return False
        tail = self.tokenizer.decode(prompt_ids[-_TAIL_TOKENS:], skip_special_tokens=False)
        return tail.rstrip().endswith(self.thinking.begin.rstrip())

    def sampling_params(self, params: SamplingParams, *, thinks: bool) -> SamplingParams:
        """`params` with the markers shown, stop strings left to the reader, and calls held to a grammar where asked.

        Raises a 400 `HttpError` naming `tools` for ones that no grammar can be made of.
        """
        if not self.parts_answers:
            return params
        words = self.tools.form.words if self.tools else ()
        if self.thinking is not None:
            words = (*words, self.thinking.begin, self.thinking.end)
        pieces = [piece for word in words for piece in self.tokenizer.control_pieces(word)]
        shown = sorted({piece for piece in pieces if isinstance(piece, int)})
        changed = replace(params, stop=(), shown_token_ids=shown)
        request = self.request
        if self.tools is None or not self._holds_calls:
            return changed
        before = BeforeCalls(text=not request.must_call, thinking=self.thinking, begun=thinks)
        offered = [
            OfferedTool(tool.function.name, tool.function.parameters or {}, bool(tool.function.strict))
            for tool in request.callable_tools
        ]
        try:
            grammar = tool_grammar(
                offered,
                self.tools.form,
                before,
                self.tokenizer.control_pieces,
                parallel=request.may_call_several,
            )
            return replace(changed, grammar=grammar)
        except InvalidRequest as error:
            raise invalid(f"tools cannot be held to their schemas: {error}", param="tools") from error

    def reader(self, *, thinks: bool) -> ChoiceReader:
        """A reader for one choice."""
        request, parser = self.request, None
        if self.tools is not None:
            schemas = {tool.function.name: tool.function.parameters or {} for tool in request.callable_tools}
            parser = parser_of(self.tools.form, schemas)
        reasoning = None if self.thinking is None else ReasoningParser(self.thinking, begun=thinks)
        stop = request.stop or ()
        return ChoiceReader(
            reasoning,
            parser,
            (stop,) if isinstance(stop, str) else stop,
            parallel=request.may_call_several,
        )


async def answer_reading(
    forms: AnswerForms, request: ChatRequest, tokenizer: Tokenizer, *, has_form: bool, reads_stops: bool = False
) -> AnswerReading:
    """`has_form`: the request says itself what the answer has to match, so it is content to the letter.

    Raises a 400 `HttpError` for tools beside such a form, or that the model cannot be offered.
    """
    if request.offered_tools and has_form:
        raise invalid("tools are given with a form for the answer, which no call would have; leave one out", "tools")
    tools = await forms.tools(tokenizer) if request.offered_tools else None
    return AnswerReading(request, tokenizer, tools, None if has_form else forms.thinking(tokenizer), reads_stops)
