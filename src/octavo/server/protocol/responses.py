"""The request of /v1/responses, and the chat request that it stands for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, Tag
from pydantic.types import Discriminator

from octavo.server.errors import invalid
from octavo.server.protocol.chat import ChatRequest
from octavo.server.protocol.fields import (
    INTEGRAL,
    MAX_SALT,
    MAX_TOKENS,
    Label,
    ModelName,
    Priority,
    RequestModel,
    absent,
    limited,
    true,
)
from octavo.server.protocol.messages import MAX_MESSAGES, TemplateVariables
from octavo.server.protocol.parsing import Unsupported, parse
from octavo.server.protocol.response_items import ResponseInput, chat_messages
from octavo.server.protocol.sampling import Stop
from octavo.server.protocol.structured import JsonObjectFormat, SchemaName, TextFormat
from octavo.server.protocol.tools import CHOICE_NEEDS_TOOLS, MAX_TOOLS, FunctionName, Parameters

MAX_METADATA = 16  # OpenAI's bounds
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]

# What the fields of the chat request are called here.
FIELD_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
UNSUPPORTED_IN_RESPONSES = {
    "access_programs": Unsupported("there are none here; leave it out"),
    "background": Unsupported("answers are made while you wait; leave it out, or send false", False),
    "background_options": Unsupported("answers are made while you wait; leave it out"),
    "context_management": Unsupported("the context is not managed here; leave it out", []),
    "conversation": Unsupported("send previous_response_id, or the items as input"),
    "image": Unsupported("answers are text only; leave it out"),
    "include": Unsupported("nothing more can be included; leave it out", []),
    "max_tool_calls": Unsupported("it bounds built-in tools, and there are none; leave it out"),
    "moderation": Unsupported("nothing is moderated here; leave it out"),
    "prompt": Unsupported("there are no stored prompts; send input and instructions"),
    "prompt_cache_options": Unsupported("prefixes are cached by themselves; leave it out"),
    "prompt_cache_retention": Unsupported("prefixes are kept in memory only; leave it out", "in_memory"),
    "service_tier": Unsupported("there is one tier; leave it out, or send auto", "auto", "default"),
    "top_logprobs": Unsupported("ask for log-probabilities with /v1/chat/completions; leave it out", 0),
    "truncation": Unsupported("input is never cut; leave it out, or send disabled", "disabled"),
}


class FunctionTool(RequestModel):
    """With `strict` its arguments are held to `parameters`; absent means false."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class ChosenFunctionTool(RequestModel):
    type: Literal["function"]
    name: Label


class SchemaFormat(RequestModel):
    """OpenAI's `json_schema`, a level flatter than in chat completions."""

    type: Literal["json_schema"]
    name: SchemaName
    description: Label | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class TextOptions(RequestModel):
    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(RequestModel):
    """A model's thinking is switched in its template: see `chat_template_kwargs`."""

    effort: None = None
    summary: None = None
    generate_summary: None = None


class ResponseStreamOptions(RequestModel):
    include_obfuscation: Literal[False] | None = None


Tools = Annotated[list[FunctionTool], Field(fail_fast=True, max_length=MAX_TOOLS, json_schema_extra=limited("tools"))]
ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")] | Annotated[ChosenFunctionTool, Tag("tool")],
    Discriminator(
        lambda value: {str: "word", dict: "tool"}.get(type(value)),
        custom_error_type="tool_choice",
        custom_error_message="Input should be none, auto, required, or {type: function, name}",
    ),
    Field(json_schema_extra=limited("tool choice")),
]


class ResponseRequest(RequestModel):
    """Null is the same as absent. The fields from `top_k` to `chat_template_kwargs` are not OpenAI's."""

    model_config = ConfigDict(
        json_schema_extra={"allOf": [CHOICE_NEEDS_TOOLS, {"anyOf": [absent("stream_options"), true("stream")]}]}
    )

    input: ResponseInput
    model: ModelName | None = None
    instructions: str | None = None
    previous_response_id: Label | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), INTEGRAL] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    text: TextOptions | None = None
    tools: Tools | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA)] | None = None
    reasoning: ReasoningOptions | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS), INTEGRAL] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64), INTEGRAL] | None = None
    stop: Stop | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, StringConstraints(max_length=MAX_SALT)] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    # Accepted, and nothing follows from them.
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    def turn(self, earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The chat messages of `earlier` turns and of the input, without the instructions."""
        messages = [*earlier, *chat_messages(self.input)]
        if len(messages) >= MAX_MESSAGES:
            raise invalid(
                f"input makes a conversation of {len(messages)} messages; at most {MAX_MESSAGES - 1} are taken, "
                "begin a new one",
                param="input",
            )
        return messages

    def chat_request(self, messages: list[dict[str, Any]]) -> ChatRequest:
        """The chat request over the messages of `turn`. Raises a 400 `HttpError` for fields that contradict."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only for stream: true; leave it out", param="stream_options")
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        same = ("model", "temperature", "top_p", "parallel_tool_calls", "top_k", "min_p", "seed", "stop", "priority")
        fields: dict[str, Any] = {name: getattr(self, name) for name in (*same, "cache_salt", "chat_template_kwargs")}
        fields |= {"messages": system + messages, "max_tokens": self.max_output_tokens}
        if self.tools:
            fields["tools"] = [
                {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
                for tool in self.tools
            ]
        choice = self.tool_choice
        if isinstance(choice, ChosenFunctionTool):
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            fields["tool_choice"] = choice
        if self.text is not None and self.text.format is not None:
            fields["response_format"] = _response_format(self.text.format)
        return parse(ChatRequest, fields)


def _response_format(given: TextFormat | JsonObjectFormat | SchemaFormat) -> dict[str, Any]:
    if not isinstance(given, SchemaFormat):
        return {"type": given.type}
    named = given.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
    return {"type": "json_schema", "json_schema": named}
