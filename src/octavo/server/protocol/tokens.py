"""The requests of /tokenize and /detokenize."""

from __future__ import annotations

from octavo.server.protocol.fields import ModelName, RequestModel, TokenIds
from octavo.server.protocol.messages import Messages, TemplateVariables


class TokenizeText(RequestModel):
    model: ModelName | None = None
    prompt: str
    messages: None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChat(RequestModel):
    model: ModelName | None = None
    messages: Messages
    prompt: None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    model: ModelName | None = None
    tokens: TokenIds
    skip_special_tokens: bool | None = None
