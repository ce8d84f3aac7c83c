"""The fields that both generation requests have, and the sampling settings they stand for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, Tag
from pydantic.config import JsonDict
from pydantic.types import Discriminator

from octavo.errors import InvalidRequest
from octavo.sampling_params import MAX_CHOICES, MAX_STOP_LENGTH, MAX_STOP_STRINGS, SamplingParams
from octavo.server.errors import invalid
from octavo.server.protocol.fields import (
    INTEGRAL,
    MAX_SALT,
    MAX_TOKENS,
    Label,
    ModelName,
    Priority,
    RequestModel,
    TokenId,
    absent,
    limited,
    true,
)
from octavo.server.protocol.parsing import Unsupported, named
from octavo.server.protocol.structured import Choices, GrammarText, ResponseFormat, grammar_of

MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
DEFAULT_TEMPERATURE = 1.0  # OpenAI's; the offline API and the command line are greedy by default

StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_LENGTH)]
StopStrings = Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)]
Stop = Annotated[
    Annotated[StopString, Tag("one")] | Annotated[StopStrings, Tag("several")],
    Discriminator(
        lambda value: {str: "one", list: "several"}.get(type(value)),
        custom_error_type="stop",
        custom_error_message="Input should be a string or a list of strings",
    ),
]
BiasKey = Annotated[
    str,
    StringConstraints(pattern=r"^(0|[1-9][0-9]{0,9})$"),
    Field(json_schema_extra=limited("token id as text")),
]
BiasValue = Annotated[float, Field(ge=-10_000, le=10_000)]

# What OpenAI's chat and completion requests have in common and this server does not act on.
UNSUPPORTED_SAMPLING = {
    "service_tier": Unsupported("there is one tier; leave it out, or send auto", "auto", "default"),
    "store": Unsupported("answers are not kept; leave it out, or send false", False),
}
# What clients written for other servers send, with what does the same here.
OTHER_SERVERS_FIELDS = {
    "enable_thinking": Unsupported("send chat_template_kwargs with it in it"),
    "guided_choice": Unsupported("send choice"),
    "guided_grammar": Unsupported("send grammar"),
    "guided_json": Unsupported("send response_format of type json_schema"),
    "guided_regex": Unsupported("send regex"),
    "include_stop_str_in_output": Unsupported("stop strings are never shown; leave it out, or send false", False),
    "length_penalty": Unsupported("there is no beam search; leave it out", 1.0, 1),
    "min_tokens": Unsupported("bound the answer with regex, or send ignore_eos", 0),
    "n_predict": Unsupported("send max_tokens"),
    "repeat_penalty": Unsupported("send repetition_penalty"),
    "structured_outputs": Unsupported("send response_format, regex, choice or grammar"),
    "use_beam_search": Unsupported("there is no beam search; leave it out, or send false", False),
}
UNSUPPORTED_SAMPLING |= OTHER_SERVERS_FIELDS


# For the JSON schema, what `check_stream_options` refuses.
OPTIONS_NEED_STREAM: JsonDict = {"anyOf": [absent("stream_options"), true("stream")]}


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingFields(RequestModel):
    """Null is the same as absent in every field. Ranges are those of `SamplingParams`."""

    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES, json_schema_extra=limited("choices")), INTEGRAL] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS), INTEGRAL] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[BiasKey, BiasValue], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64), INTEGRAL] | None = None  # in /openapi.json bounds are floats
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, StringConstraints(max_length=MAX_SALT)] | None = None
    response_format: ResponseFormat | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    # Accepted, for real clients send them, and nothing follows from them.
    user: Label | None = None
    metadata: dict[str, Any] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def streams_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        """Raises a 400 `HttpError` if there are options for a stream but no stream."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only for stream: true; leave it out", param="stream_options")

    def sampling_params(
        self, vocab_size: int, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        """The settings that hold for each choice. Raises a 400 `HttpError` for ids outside `range(vocab_size)`."""
        given: dict[str, Any] = {
            "temperature": DEFAULT_TEMPERATURE if self.temperature is None else self.temperature,
            "top_k": None if self.top_k is None else max(self.top_k, 0),  # other engines' -1 means off, too
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": {int(key): bias for key, bias in self.logit_bias.items()} if self.logit_bias else None,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "seed": self.seed,
            "n": self.n,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
        }
        try:
            given["grammar"] = grammar_of(self.response_format, self.regex, self.choice, self.grammar)
            params = SamplingParams(**{name: value for name, value in given.items() if value is not None})
            params.check_vocabulary(vocab_size)
        except InvalidRequest as error:
            raise named(error, type(self)) from error
        return params
