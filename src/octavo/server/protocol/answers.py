"""The answers of generation calls, as /openapi.json tells them. They are written by hand; tests hold them to this."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class AnswerModel(BaseModel):
    """An object that the server writes. It has no other fields."""

    model_config = ConfigDict(extra="forbid")


class PromptTokensDetails(AnswerModel):
    cached_tokens: int


class UsageAnswer(AnswerModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TokenEntry(AnswerModel):
    token: str
    logprob: float
    bytes: list[int]


class ScoredEntry(TokenEntry):
    top_logprobs: list[TokenEntry]


class ChatLogprobs(AnswerModel):
    content: list[ScoredEntry]
    refusal: None


class MadeFunction(AnswerModel):
    name: str
    arguments: str


class MadeCall(AnswerModel):
    id: str
    type: Literal["function"]
    function: MadeFunction


class AnswerMessage(AnswerModel):
    """`content` is null where there are only calls. The last two are there only where there is something in them."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[MadeCall] = Field(default_factory=list)


class ChatChoice(AnswerModel):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(AnswerModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageAnswer


class CompletionEntries(AnswerModel):
    """Four lists with one item for each token; null for the first of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnswerModel):
    index: int
    text: str
    logprobs: CompletionEntries | None
    finish_reason: Literal["stop", "length"]


class Completion(AnswerModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageAnswer


class Embedding(AnswerModel):
    """`embedding` is a list of numbers, or the base64 of little-endian float32 values."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(AnswerModel):
    prompt_tokens: int
    total_tokens: int


class Embeddings(AnswerModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Tokenized(AnswerModel):
    """`token_strs` are the texts of the tokens, if they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(AnswerModel):
    prompt: str
