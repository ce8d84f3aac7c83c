"""The request of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag
from pydantic.types import Discriminator

from octavo.sampling_params import MAX_LOGPROBS
from octavo.server.errors import invalid
from octavo.server.protocol.fields import INTEGRAL, MAX_TOKENS, InputIds, SomeTokenIds, limited, true
from octavo.server.protocol.parsing import Unsupported
from octavo.server.protocol.sampling import OPTIONS_NEED_STREAM, UNSUPPORTED_SAMPLING, SamplingFields
from octavo.server.protocol.structured import ONE_FORM

MAX_PROMPTS = 1024  # that a schema allows; a server's own settings may allow fewer

UNSUPPORTED_IN_COMPLETIONS = UNSUPPORTED_SAMPLING | {
    "best_of": Unsupported("every choice is returned; ask for more with n and choose by logprobs", 1),
}


def _prompt_kind(value: Any) -> str | None:
    """Decided by the first item, so that a long list is read as one thing only."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    if not value:
        return "texts"
    if isinstance(value[0], str):
        return "texts"
    return "id lists" if isinstance(value[0], list) else "ids"


_SEVERAL = Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS, json_schema_extra=limited("prompts"))
Text = Annotated[str, Field(json_schema_extra=limited("prompt text"))]
Texts = Annotated[list[Text], _SEVERAL]
IdLists = Annotated[list[SomeTokenIds], _SEVERAL]
InputIdLists = Annotated[list[InputIds], _SEVERAL]
_BY_KIND = Discriminator(
    _prompt_kind,
    custom_error_type="prompt",
    custom_error_message="Input should be text, a list of texts, a list of token ids, or a list of such lists",
)
Prompt = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[SomeTokenIds, Tag("ids")]
    | Annotated[IdLists, Tag("id lists")],
    _BY_KIND,
]
# A prompt after which nothing is generated.
Input = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[InputIds, Tag("ids")]
    | Annotated[InputIdLists, Tag("id lists")],
    _BY_KIND,
]


class CompletionRequest(SamplingFields):
    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                OPTIONS_NEED_STREAM,
                ONE_FORM,
                {"anyOf": [{"properties": {"suffix": {"maxLength": 0}}}, {"not": true("echo")}]},
                {"anyOf": [{"properties": {"max_tokens": {"type": ["integer", "null"], "minimum": 1}}}, true("echo")]},
            ]
        }
    )

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS), INTEGRAL] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), INTEGRAL] | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: Annotated[str, Field(json_schema_extra=limited("suffix"))] | None = None

    def check(self) -> None:
        """Raises a 400 `HttpError` for fields that contradict each other."""
        self.check_stream_options()
        if self.suffix and self.echo:
            raise invalid(
                "echo is true with a suffix, which the answer would stand before; leave out one", param="echo"
            )
        if self.max_tokens == 0 and not self.echo:
            raise invalid(
                "max_tokens is 0, which generates nothing; add echo: true (and logprobs) to score the prompt, "
                "or give at least 1",
                param="max_tokens",
            )

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Alternatives to tell at each prompt token; None for none. The engine takes 0 tokens only when it scores."""
        if not self.echo:
            return None
        return 0 if self.logprobs is None and self.max_tokens == 0 else self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one by one."""
        prompt: Any = self.prompt
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)
