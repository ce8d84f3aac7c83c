"""The request of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from octavo.server.errors import invalid
from octavo.server.protocol.fields import INTEGRAL, MAX_TOKENS, Label, true
from octavo.server.protocol.messages import Messages, TemplateVariables, template_variables
from octavo.server.protocol.parsing import Unsupported
from octavo.server.protocol.sampling import OPTIONS_NEED_STREAM, UNSUPPORTED_SAMPLING, SamplingFields
from octavo.server.protocol.structured import ONE_FORM
from octavo.server.protocol.tools import CHOICE_NEEDS_TOOLS, ChosenTool, Tool, ToolChoice, Tools, check_tools

MAX_TOP_LOGPROBS = 20  # OpenAI's bound

UNSUPPORTED_IN_CHAT = UNSUPPORTED_SAMPLING | {
    "functions": Unsupported("it is the old name of tools; send tools", []),
    "function_call": Unsupported("it is the old name of tool_choice; send tool_choice", "none", "auto"),
    "modalities": Unsupported("answers are text only; leave it out", ["text"]),
    "audio": Unsupported("answers are text only; leave it out"),
    "moderation": Unsupported("nothing is moderated here; leave it out"),
    "prediction": Unsupported("predicted output cannot be used; leave it out"),
    "reasoning_effort": Unsupported(
        "a model's thinking is switched in its template; leave it out, or see chat_template_kwargs"
    ),
    "verbosity": Unsupported("ask for the length in a message, or set max_tokens; leave it out", "medium"),
    "web_search_options": Unsupported("this server searches nothing; leave it out"),
    "prompt_cache_options": Unsupported("prefixes are cached by themselves; leave it out"),
    "prompt_cache_retention": Unsupported("prefixes are kept in memory only; leave it out", "in_memory", "in-memory"),
    "continue_final_message": Unsupported(
        "send the text to be continued as the prompt of /v1/completions; leave it out", False
    ),
}


class ChatRequest(SamplingFields):
    """Fields of OpenAI's that are not supported yet are declared with the values that ask for nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                OPTIONS_NEED_STREAM,
                ONE_FORM,
                CHOICE_NEEDS_TOOLS,
                {"anyOf": [{"properties": {"top_logprobs": {"enum": [0, None]}}}, true("logprobs")]},
            ]
        }
    )

    messages: Messages
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), INTEGRAL] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), INTEGRAL] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), INTEGRAL] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    parallel_tool_calls: bool | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory"] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None
    continue_final_message: Literal[False] | None = None

    def check(self) -> None:
        """Raises a 400 `HttpError` for fields that contradict each other."""
        self.check_stream_options()
        check_tools(self.tools, self.tool_choice)
        if self.top_logprobs and not self.logprobs:
            raise invalid(f"top_logprobs is {self.top_logprobs} without logprobs: true; add it", param="top_logprobs")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and self.max_tokens != self.max_completion_tokens:
            raise invalid(
                f"max_tokens is {self.max_tokens} and max_completion_tokens {self.max_completion_tokens}; "
                "they mean the same: give one of them",
                param="max_tokens",
            )

    @property
    def offered_tools(self) -> list[Tool]:
        """Those that the model is told of: none if none is to be called."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def callable_tools(self) -> list[Tool]:
        """Those of the offered ones that may be called."""
        if not isinstance(self.tool_choice, ChosenTool):
            return self.offered_tools
        return [tool for tool in self.offered_tools if tool.function.name == self.tool_choice.function.name]

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, ChosenTool)

    @property
    def may_call_several(self) -> bool:
        """Whether one answer may have several calls. One that has to call a certain tool calls it once."""
        return self.parallel_tool_calls is not False and not isinstance(self.tool_choice, ChosenTool)

    @property
    def token_limit(self) -> int | None:
        """Most tokens of an answer; None for up to the context."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to tell at each token; None for no log-probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def template_variables(self) -> dict[str, Any]:
        return template_variables(self.chat_template_kwargs, self.add_generation_prompt)
