"""The sampler as a whole: every mix of settings, greedy rows, and draws by seed, choice and position."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sampler_cases import naive_scores, one, random_logits, random_row, row, sample

from octavo.engine.sampler import Sampler, SampleResult, SamplerRow
from octavo.sampling_params import SamplingParams


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Rows of a few thousand tokens gain nothing from threads, and much is lost where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("vocab_size", [3, 97, 1021])
def test_every_mix_of_settings_draws_what_a_naive_float64_sampler_draws(vocab_size: int) -> None:
    rng = random.Random(vocab_size)
    rows = [random_row(rng, vocab_size) for _ in range(200)]
    logits = random_logits(len(rows), vocab_size)
    result = Sampler(vocab_size, "cpu").sample(logits, rows)
    compared = 0
    for values, one_row, token_id in zip(logits.tolist(), rows, result.token_ids, strict=True):
        scores = naive_scores(values, one_row)
        ranked = sorted(scores, key=lambda i: (-scores[i], i))
        if len(ranked) == 1 or scores[ranked[0]] - scores[ranked[1]] > 1e-3:
            assert token_id == ranked[0], one_row.params
            compared += 1
    assert compared > 190


def test_greedy_takes_the_largest_logit_of_each_row() -> None:
    logits = random_logits(9, 1021)
    assert sample(logits, *[row()] * 9).token_ids == logits.double().numpy().argmax(axis=1).tolist()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocab_size", [5, 1021, 49_152, 151_936])
def test_greedy_takes_the_lowest_of_equal_ids_at_any_size_and_thread_count(vocab_size: int, threads: int) -> None:
    torch.set_num_threads(threads)
    for first, second in [(0, vocab_size - 1), (vocab_size // 3, vocab_size // 2), (vocab_size - 2, vocab_size - 1)]:
        logits = torch.zeros(1, vocab_size)
        logits[0, first] = logits[0, second] = 2.0
        assert sample(logits, row()).token_ids == [first]
    assert sample(torch.zeros(1, vocab_size), row()).token_ids == [0]


def test_sampling_leaves_the_logits_as_they_were() -> None:
    logits = random_logits(20, 97)
    before = logits.clone()
    rng = random.Random(1)
    Sampler(97, "cpu").sample(logits, [random_row(rng, 97) for _ in range(20)])
    assert torch.equal(logits, before)


def test_no_rows_give_no_tokens() -> None:
    assert Sampler(5, "cpu").sample(torch.empty(0, 5), []) == SampleResult([], [], [])


def test_a_draw_repeats_with_its_seed_choice_and_position_and_changes_with_each_of_them() -> None:
    logits = torch.zeros(1, 5003)
    sampler = Sampler(5003, "cpu")

    def draw(seed: int, choice: int, position: int) -> int:
        settings = SamplingParams(temperature=1.0)
        return sampler.sample(logits, [SamplerRow(settings, seed, choice, position, (), ())]).token_ids[0]

    assert draw(1, 0, 0) == draw(1, 0, 0)
    drawn = [draw(1, 0, 0), draw(2, 0, 0), draw(1, 1, 0), draw(1, 0, 1)]
    assert len(set(drawn)) == 4


def test_what_a_request_has_generated_does_not_move_its_randomness() -> None:
    logits = torch.zeros(1, 5003)
    settings = SamplingParams(temperature=1.0)
    sampler = Sampler(5003, "cpu")
    fresh = SamplerRow(settings, 9, 0, 4, [1, 2, 3, 4], [])
    resumed = SamplerRow(settings, 9, 0, 4, [1, 2], [3, 4])
    assert sampler.sample(logits, [fresh]).token_ids == sampler.sample(logits, [resumed]).token_ids


def test_tokens_come_with_their_softmax_frequency() -> None:
    logits, draws = torch.tensor([[1.0, 0.0, -1.0, 0.5, -30.0]]), 4000
    rows = [row(seed=seed, temperature=2.0) for seed in range(draws)]
    counts = np.bincount(Sampler(5, "cpu").sample(logits.expand(draws, -1), rows).token_ids, minlength=5)
    expected = torch.softmax(logits[0].double() / 2.0, 0).numpy() * draws
    assert np.abs(counts - expected).max() < 4 * math.sqrt(expected.max())


def test_filtered_tokens_are_never_drawn_and_the_others_keep_their_proportions() -> None:
    logits, draws = torch.tensor([[0.0, 2.0, 1.0, -1.0, 1.5]]), 4000
    rows = [row(seed=seed, temperature=1.0, top_k=3) for seed in range(draws)]
    counts = np.bincount(Sampler(5, "cpu").sample(logits.expand(draws, -1), rows).token_ids, minlength=5)
    weights = np.exp([2.0, 1.0, 1.5])
    expected = draws * weights / weights.sum()
    assert counts[0] == counts[3] == 0
    assert np.abs(counts[[1, 2, 4]] - expected).max() < 4 * math.sqrt(expected.max())


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-6, 1e-3])
def test_a_vanishing_temperature_takes_the_best_token(temperature: float) -> None:
    logits = random_logits(1, 1021)[0].tolist()
    assert {one(logits, seed=seed, temperature=temperature) for seed in range(20)} == {int(np.argmax(logits))}


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 1.0}], ids=str)
def test_at_a_vanishing_temperature_equals_at_the_top_are_still_drawn_from(settings: dict[str, object]) -> None:
    drawn = {one([1.0, 4.0, 4.0, -8.0], seed=seed, temperature=5e-324, **settings) for seed in range(40)}
    assert drawn == {1, 2}


def test_a_temperature_of_100_draws_nearly_evenly() -> None:
    drawn = {one([4.0, 3.0, -2.0, -8.0], seed=seed, temperature=100.0) for seed in range(60)}
    assert drawn == {0, 1, 2, 3}


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 1e-9}, {"top_p": 5e-324}, {"min_p": 1.0}], ids=str)
def test_the_tightest_filter_leaves_the_best_token_alone(settings: dict[str, object]) -> None:
    logits = random_logits(1, 1021)[0].tolist()
    for seed in range(10):
        assert one(logits, seed=seed, temperature=5.0, **settings) == int(np.argmax(logits))


def test_a_top_k_beyond_the_vocabulary_filters_nothing() -> None:
    logits = random_logits(1, 97)[0].tolist()
    for seed in range(20):
        plain = one(logits, seed=seed, temperature=3.0)
        assert one(logits, seed=seed, temperature=3.0, top_k=10**30) == plain


def test_masked_tokens_are_never_drawn() -> None:
    logits = [-math.inf, 0.0, -math.inf, 0.5]
    assert {one(logits, seed=seed, temperature=100.0) for seed in range(40)} == {1, 3}


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5, "logprobs": 3}])
def test_a_vocabulary_of_one_token_gives_that_token(settings: dict[str, object]) -> None:
    assert one([-3.0], **settings) == 0
