"""Log-probabilities: from the raw logits, in a fixed order, whatever the settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sampler_cases import random_logits, row, sample

from octavo.engine.sampler import Sampler
from octavo.engine.sampling_logprobs import ScoredTokens, scored_tokens
from octavo.engine.sampling_workspace import Workspace
from octavo.outputs import TokenLogprobs


def log_softmax(values: Sequence[float]) -> np.ndarray:
    z = np.array(values, dtype=np.float64)
    z = z - z.max()
    return z - np.log(np.exp(z).sum())


@pytest.mark.parametrize("vocab_size", [5, 1021, 50_257])
def test_logprobs_are_the_log_softmax_of_the_raw_logits_whatever_the_settings(vocab_size: int) -> None:
    logits = random_logits(3, vocab_size)
    rows = [
        row(logprobs=4),
        row(logprobs=2, temperature=3.0, top_k=2, seed=5),
        row([0], [1, 1], logprobs=3, repetition_penalty=2.0, frequency_penalty=5.0, logit_bias={2: 50.0}),
    ]
    result = sample(logits, *rows)
    for values, one_row, token_id, found in zip(logits.tolist(), rows, result.token_ids, result.logprobs, strict=True):
        expected = log_softmax(values)
        assert found is not None and found.token_id == token_id
        assert found.logprob == pytest.approx(expected[token_id], abs=2e-6)
        order = np.argsort(-expected, kind="stable")[: one_row.params.logprobs]
        assert [i for i, _ in found.top] == order.tolist()
        assert [value for _, value in found.top] == pytest.approx(expected[order].tolist(), abs=2e-6)
    assert result.token_ids[2] == 2


def test_top_logprobs_of_equal_logits_are_ordered_by_id() -> None:
    found = sample([[1.0, 3.0, 1.0, 3.0, 1.0]], row(logprobs=4)).logprobs[0]
    assert found is not None and [token_id for token_id, _ in found.top] == [1, 3, 0, 2]


def test_zero_logprobs_give_the_chosen_token_alone_and_none_give_nothing() -> None:
    result = sample([[0.0, 0.0], [0.0, 0.0]], row(logprobs=0), row())
    assert result.logprobs == [TokenLogprobs(0, pytest.approx(-math.log(2)), ()), None]


def test_more_logprobs_than_tokens_give_every_token() -> None:
    found = sample([[0.0, 1.0, 2.0]], row(logprobs=100)).logprobs[0]
    assert found is not None and [token_id for token_id, _ in found.top] == [2, 1, 0]
    assert sum(math.exp(value) for _, value in found.top) == pytest.approx(1.0, abs=1e-6)


def test_the_logprob_of_a_certain_token_is_zero_and_of_a_masked_one_minus_infinity() -> None:
    found = sample([[0.0, -math.inf]], row(logprobs=2)).logprobs[0]
    assert found == TokenLogprobs(0, 0.0, ((0, 0.0), (1, -math.inf)))


def test_scores_are_the_same_after_one_copy_of_words() -> None:
    logits = torch.tensor([[0.0, -math.inf, 2.5], [1.0, 1.0, -7.0]])
    scored = scored_tokens(logits, torch.tensor([0, 2]), [2, 100], Workspace(torch.device("cpu")))
    told = scored.told()
    assert [len(each.top) for each in told] == [2, 3]
    assert ScoredTokens.told_of(scored.words().tolist(), scored.num_top) == told


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_gpu_tells_of_the_rows_that_ask_and_of_none_that_failed() -> None:
    logits = random_logits(4, 1021)
    logits[2, 5] = math.nan
    rows = [row(logprobs=3), row(temperature=1.0), row(logprobs=2), row(logprobs=0, temperature=0.7, seed=3)]
    found = Sampler(1021, "cuda").sample(logits.cuda(), rows)
    expected = Sampler(1021, "cpu").sample(logits, rows)
    assert found.token_ids == expected.token_ids and found.errors == expected.errors
    for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert (mine.token_id, [i for i, _ in mine.top]) == (theirs.token_id, [i for i, _ in theirs.top])
            assert [mine.logprob, *(v for _, v in mine.top)] == pytest.approx(
                [theirs.logprob, *(v for _, v in theirs.top)], abs=2e-6
            )
