"""The requests of /v1/messages and /v1/messages/count_tokens, and the chat request that they stand for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from octavo.sampling_params import MAX_STOP_LENGTH, MAX_STOP_STRINGS
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
    limited,
)
from octavo.server.protocol.message_blocks import CacheControl, TextContent, Turns, chat_messages
from octavo.server.protocol.messages import TemplateVariables
from octavo.server.protocol.parsing import Unsupported, parse
from octavo.server.protocol.tools import MAX_TOOLS, FunctionName, Parameters

# What the fields of the chat request are called here.
FIELD_NAMES = {"stop": "stop_sequences", "response_format.json_schema": "output_config.format"}
FIELD_NAMES |= {"response_format": "output_config.format", "parallel_tool_calls": "tool_choice"}
_NONE = "there are none here; leave it out"
UNSUPPORTED_IN_MESSAGES = {
    "container": Unsupported(_NONE),
    "context_management": Unsupported("the context is not managed here; leave it out"),
    "diagnostics": Unsupported(_NONE),
    "inference_geo": Unsupported("answers are made where the server runs; leave it out"),
    "mcp_servers": Unsupported("this server calls no others; leave it out", []),
    "output_format": Unsupported("it is the old name of output_config.format; send that"),
    "speed": Unsupported("there is one speed; leave it out", "standard"),
    "user_profile_id": Unsupported(_NONE),
    "workspace_id": Unsupported(_NONE),
}

StopSequence = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_LENGTH)]


class MessageTool(RequestModel):
    """With `strict` its input is held to `input_schema`."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None  # accepted: it always streams as it is generated


class AutoChoice(RequestModel):
    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool | None = None


class NoChoice(RequestModel):
    type: Literal["none"]


class OneChoice(RequestModel):
    """The answer has that call alone, so that it makes no difference whether several are allowed."""

    type: Literal["tool"]
    name: Label
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestModel):
    """`adaptive` leaves it to the model; a budget cannot be kept."""

    type: Literal["disabled", "adaptive"]


class OutputFormat(RequestModel):
    type: Literal["json_schema"]
    definition: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestModel):
    format: OutputFormat | None = None
    effort: None = None


class MessageMetadata(RequestModel):
    user_id: Label | None = None


MessageTools = Annotated[
    list[MessageTool], Field(fail_fast=True, max_length=MAX_TOOLS, json_schema_extra=limited("tools"))
]
MessageToolChoice = Annotated[AutoChoice | NoChoice | OneChoice, Field(discriminator="type")]


class CountTokensRequest(RequestModel):
    """What determines the prompt. Null is the same as absent."""

    messages: Turns
    model: ModelName | None = None
    system: TextContent | None = None
    tools: MessageTools | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: TemplateVariables | None = None  # not Anthropic's
    cache_control: CacheControl | None = None

    def chat_request(self) -> ChatRequest:
        """Raises a 400 `HttpError` for what a chat cannot be asked."""
        if self.messages[-1].role == "assistant":
            raise invalid(
                "messages ends with one of the assistant's, and answers cannot be begun for the model; "
                "end with one of the user's",
                param="messages",
            )
        return parse(ChatRequest, self._chat_fields())

    def _chat_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self.model, "messages": chat_messages(self.system, self.messages)}
        fields |= _choice_fields(self.tool_choice)
        if self.tools:
            fields["tools"] = [_function(tool) for tool in self.tools]
        variables = dict(self.chat_template_kwargs or {})
        if self.thinking is not None and self.thinking.type == "disabled":
            variables = {"enable_thinking": False, "thinking": False, **variables}  # templates know one or the other
        fields["chat_template_kwargs"] = variables
        if self.output_config is not None and self.output_config.format is not None:
            named = {"name": "answer", "schema": self.output_config.format.definition, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        return fields


class MessageRequest(CountTokensRequest):
    """`min_p`, `seed`, `priority` and `cache_salt` are not Anthropic's."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), INTEGRAL]
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS), INTEGRAL] | None = None
    stop_sequences: Annotated[list[StopSequence], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64), INTEGRAL] | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, StringConstraints(max_length=MAX_SALT)] | None = None
    # Accepted, and nothing follows from them.
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def _chat_fields(self) -> dict[str, Any]:
        same = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "priority", "cache_salt")
        own = {name: getattr(self, name) for name in same}
        return {**super()._chat_fields(), **own, "stop": self.stop_sequences}


def _function(tool: MessageTool) -> dict[str, Any]:
    told = {"name": tool.name, "parameters": tool.input_schema, "strict": tool.strict}
    if tool.description is not None:
        told["description"] = tool.description
    return {"type": "function", "function": told}


def _choice_fields(choice: MessageToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    if isinstance(choice, NoChoice):
        return {"tool_choice": "none"}
    if isinstance(choice, OneChoice):
        return {"tool_choice": {"type": "function", "function": {"name": choice.name}}}
    word = "auto" if choice.type == "auto" else "required"
    return {"tool_choice": word, "parallel_tool_calls": not choice.disable_parallel_tool_use}
