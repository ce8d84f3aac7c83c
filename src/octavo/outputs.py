"""What comes back to a client: tokens, text, reasons, counts, timings."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.errors import InvalidRequest

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (natural log) at one output position: the chosen token, then the best ones, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """`cached_tokens` of the prompt were not computed: their K/V came with a snapshot or was in the prefix cache, when
    the request began. Of several choices it is the least; 0 also where the cache is off.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and tokens per second. `prefill_s` ends with the first sampled token, `decode_s` covers the rest."""

    load_s: float
    prefill_s: float
    decode_s: float
    prefill_tps: float
    decode_tps: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    """One streamed piece. Joined deltas of a request equal its whole text; only the last has a finish reason."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished choice."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The vector of a prompt: float32 values of length 1, or as many of the first as were asked for, scaled to it."""

    prompt_token_ids: tuple[int, ...]
    embedding: tuple[float, ...]


def shortened(embedding: tuple[float, ...], dimensions: int | None) -> tuple[float, ...]:
    """The first `dimensions` values scaled to length 1; all if it is None. Raises `InvalidRequest` for more than
    there are.
    """
    if dimensions is None or dimensions == len(embedding):
        return embedding
    if not 1 <= dimensions <= len(embedding):
        raise InvalidRequest(f"dimensions is {dimensions}; this model's embeddings have 1 to {len(embedding)}")
    head = embedding[:dimensions]
    length = math.sqrt(math.fsum(value * value for value in head)) or 1.0
    return tuple(_float32(value / length) for value in head)


def _float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished prompt with all its choices.

    `prompt_logprobs` has an entry for each prompt token, None for the first; None if they were not asked for.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    usage: Usage
    timings: Timings
    storage: str
    routes: Mapping[str, int] = field(default_factory=dict)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
