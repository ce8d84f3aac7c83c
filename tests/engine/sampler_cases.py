"""Rows, logits and a naive float64 sampler for the sampler's tests."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import torch

from octavo.engine.sampler import Sampler, SampleResult, SamplerRow
from octavo.sampling_params import SamplingParams

MASK = 2**64 - 1


def row(
    prompt: Sequence[int] = (), output: Sequence[int] = (), seed: int = 0, choice: int = 0, **params: object
) -> SamplerRow:
    settings = SamplingParams(**params)  # type: ignore[arg-type]
    return SamplerRow(settings, seed, choice, len(prompt) + len(output), prompt, output)


def sample(logits: Sequence[Sequence[float]] | torch.Tensor, *rows: SamplerRow) -> SampleResult:
    table = torch.as_tensor(logits, dtype=torch.float32)
    return Sampler(table.shape[1], "cpu").sample(table, rows)


def one(logits: Sequence[float], **settings: object) -> int:
    result = sample([logits], row(**settings))  # type: ignore[arg-type]
    assert result.errors == [None]
    return result.token_ids[0]


def random_logits(rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 4


def random_row(rng: random.Random, vocab_size: int) -> SamplerRow:
    """Any mix of settings."""

    def maybe(*values: object) -> object:
        return rng.choice(values)

    prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 40))]
    output = [rng.choice([*prompt, rng.randrange(vocab_size)]) for _ in range(rng.randint(0, 40))]
    return row(
        prompt,
        output,
        seed=rng.randint(-(2**63), 2**64 - 1),
        choice=rng.randint(0, 3),
        temperature=maybe(0.0, 0.0, 1e-3, 0.7, 1.0, 5.0),
        top_k=maybe(0, 0, 1, 20, vocab_size + 7),
        top_p=maybe(1.0, 0.01, 0.5, 0.95),
        min_p=maybe(0.0, 0.0, 0.1, 1.0),
        repetition_penalty=maybe(1.0, 1.0, 1.3, 0.8),
        presence_penalty=maybe(0.0, 0.0, 0.7, -1.0),
        frequency_penalty=maybe(0.0, 0.0, 0.3),
        logit_bias=maybe({}, {}, {rng.randrange(vocab_size): 3.0, 0: -100.0}),
        logprobs=maybe(None, None, 0, 5),
    )


def naive_mix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def naive_gumbel(seed: int, choice: int, position: int, token_id: int) -> float:
    key = naive_mix(naive_mix(naive_mix(seed & MASK) ^ choice) ^ position)
    # naive_mix adds the golden ratio itself: start one multiple lower, so that token 0 has multiple 1.
    word = (naive_mix((token_id * 0x9E3779B97F4A7C15) & MASK) ^ key) * 0xBF58476D1CE4E5B9 & MASK
    word = ((word ^ (word >> 32)) * 0x94D049BB133111EB) & MASK
    uniform = min(max((word >> 11) / 2**53, 2**-54), 1 - 2**-24)
    return -math.log(-math.log1p(-uniform))


def naive_adjust(logits: Sequence[float], one_row: SamplerRow) -> list[float]:
    p = one_row.params
    adjusted = [float(x) for x in logits]
    for token_id, bias in p.logit_bias.items():
        adjusted[token_id] += bias
    for token_id in {*one_row.prompt_token_ids, *one_row.output_token_ids}:
        value = adjusted[token_id]
        adjusted[token_id] = value / p.repetition_penalty if value > 0 else value * p.repetition_penalty
    for token_id, count in Counter(one_row.output_token_ids).items():
        adjusted[token_id] -= p.presence_penalty + p.frequency_penalty * count
    return adjusted


def naive_scores(logits: Sequence[float], one_row: SamplerRow) -> dict[int, float]:
    """Score per token that may win; the largest wins."""
    p = one_row.params
    adjusted = naive_adjust(logits, one_row)
    if p.temperature == 0:
        return dict(enumerate(adjusted))
    best = max(adjusted)
    z = {i: (value - best) / p.temperature for i, value in enumerate(adjusted)}
    order = sorted(z, key=lambda i: (-z[i], i))
    if p.min_p:
        order = [i for i in order if math.exp(z[i]) >= p.min_p]
    if p.top_k:
        order = order[: p.top_k]
    if p.top_p < 1:
        total, run, cumulative = sum(math.exp(z[i]) for i in order), [], 0.0
        for i in order:
            run.append(i)
            cumulative += math.exp(z[i])
            if cumulative >= p.top_p * total:
                break
        order = run
    return {i: z[i] + naive_gumbel(one_row.seed, one_row.choice, one_row.position, i) for i in order}
