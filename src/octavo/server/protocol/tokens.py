"""The requests of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from octavo.server.errors import invalid
from octavo.server.protocol.fields import Label, RequestModel, TokenIds
from octavo.server.protocol.messages import Messages, TemplateVariables, template_variables


class TokenizeRequest(RequestModel):
    """Either a `prompt` or `messages`."""

    model: Label | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None

    def check(self) -> None:
        """Raises a 400 `HttpError` unless exactly one of the two is there, with fields that belong to it."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid("give either prompt or messages, and not both", param="prompt")
        only_text, only_chat = ("add_special_tokens",), ("add_generation_prompt", "chat_template_kwargs")
        for name in only_text if self.prompt is None else only_chat:
            if getattr(self, name) is not None:
                other = "prompt" if self.prompt is None else "messages"
                raise invalid(f"{name} goes with {other} only; leave it out", param=name)

    @property
    def template_variables(self) -> dict[str, Any]:
        return template_variables(self.chat_template_kwargs, self.add_generation_prompt)


class DetokenizeRequest(RequestModel):
    model: Label | None = None
    tokens: TokenIds
    skip_special_tokens: bool | None = None
