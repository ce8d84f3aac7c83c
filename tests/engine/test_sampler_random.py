"""Counter-based noise: exact integers, good statistics, and no dependence between keys or tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from octavo.engine.sampling_random import RANDOM_BITS, TokenNoise, row_key
from octavo.engine.sampling_workspace import Workspace

MASK = 2**64 - 1


def noise(vocab_size: int) -> TokenNoise:
    return TokenNoise(vocab_size, Workspace(torch.device("cpu")))


def bits(keys: list[int], vocab_size: int) -> np.ndarray:
    return noise(vocab_size).bits(keys).numpy().copy()


def keys_along(name: str, count: int) -> list[int]:
    """Keys whose seed, choice or position runs from 0 while the others stand still."""
    base = {"seed": 11, "choice": 0, "position": 5}
    return [row_key(**{**base, name: index}) for index in range(count)]


def assert_chi_square(observed: np.ndarray, expected: np.ndarray | float) -> None:
    """Pearson's statistic must lie within four standard deviations of its mean, on both sides."""
    observed = observed.astype(np.float64).ravel()
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = observed.size - 1
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom), f"chi-square {statistic:.1f} at {freedom} degrees"


def reference_bits(key: int, token_id: int) -> int:
    """The definition, in Python integers."""
    word = ((token_id + 1) * 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    word ^= word >> 31
    word = ((word ^ key) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 32)) * 0x94D049BB133111EB) & MASK
    return word >> 11


def test_bits_are_the_exact_integers_of_the_definition() -> None:
    keys = [0, 1, MASK, 1 << 63, row_key(-1, 0, 0), row_key(7, 3, 123_456)]
    got = bits(keys, 1021)
    assert got.tolist() == [[reference_bits(key, token) for token in range(1021)] for key in keys]


def test_a_draw_does_not_depend_on_vocabulary_size_batch_or_the_choice_of_tokens() -> None:
    keys = [row_key(1, 0, position) for position in range(5)]
    whole = bits(keys, 997)
    assert (bits(keys, 211) == whole[:, :211]).all()
    assert (bits(keys[3:4], 997) == whole[3:4]).all()
    some = torch.tensor([0, 5, 500, 996])
    assert (noise(997).bits(keys, some).numpy() == whole[:, some.numpy()]).all()


def test_negative_seeds_count_modulo_two_to_the_64() -> None:
    assert row_key(-1, 0, 0) == row_key(MASK, 0, 0) != row_key(1, 0, 0)


def test_keys_of_neighbouring_and_exchanged_arguments_all_differ() -> None:
    keys = {row_key(s, c, p) for s in range(-10, 10) for c in range(20) for p in range(20)}
    assert len(keys) == 20 * 20 * 20


@pytest.mark.parametrize("shift", [0, 16, 29, 45], ids=lambda s: f"bits {s} to {s + 7}")
@pytest.mark.parametrize("along", ["token", "seed", "choice", "position"])
def test_every_byte_of_the_bits_is_uniform_along_every_argument(along: str, shift: int) -> None:
    values = bits(keys_along("seed", 1), 65536)[0] if along == "token" else bits(keys_along(along, 65536), 1)[:, 0]
    assert values.min() >= 0 and values.max() < 2**RANDOM_BITS
    assert_chi_square(np.bincount((values >> shift) & 255, minlength=256), 65536 / 256)


@pytest.mark.parametrize("lag", [0, 1, 64])
@pytest.mark.parametrize("along", ["seed", "choice", "position"])
def test_rows_with_neighbouring_arguments_are_independent_token_by_token(along: str, lag: int) -> None:
    first, second = bits(keys_along(along, 2), 65536 + lag)
    pairs = (first[:65536] >> 48) * 32 + (second[lag : 65536 + lag] >> 48)
    assert_chi_square(np.bincount(pairs, minlength=1024), 65536 / 1024)


@pytest.mark.parametrize("lag", [1, 2, 3, 256, 4096])
def test_tokens_of_one_row_are_independent_of_each_other(lag: int) -> None:
    values = bits([row_key(3, 0, 9)], 65536 + lag)[0] >> 48
    assert_chi_square(np.bincount(values[:-lag] * 32 + values[lag:], minlength=1024), 65536 / 1024)


@pytest.mark.parametrize("along", ["seed", "choice", "position"])
def test_flipping_any_one_bit_of_an_argument_flips_half_of_the_random_bits(along: str) -> None:
    base = {"seed": 0x1234_5678_9ABC, "choice": 5, "position": 777}
    flips = [row_key(**{**base, along: base[along] ^ (1 << bit)}) for bit in range(20)]
    table = bits([row_key(**base), *flips], 4096)
    changed = table[1:] ^ table[:1]
    for bit in range(RANDOM_BITS):
        share = ((changed >> bit) & 1).mean(axis=1)
        assert np.abs(share - 0.5).max() < 5 * 0.5 / math.sqrt(4096)


def test_gumbel_noise_follows_its_distribution_function() -> None:
    values = np.sort(noise(100_003).gumbel([row_key(0, 0, 0)]).numpy().copy().ravel().astype(np.float64))
    distribution = np.exp(-np.exp(-values))
    ranks = np.arange(1, len(values) + 1) / len(values)
    assert np.abs(distribution - ranks).max() < 1.63 / math.sqrt(len(values))  # Kolmogorov-Smirnov at 1 %


def test_gumbel_noise_is_the_double_logarithm_of_the_bits() -> None:
    one = noise(10_007)
    key = row_key(5, 0, 1)
    v = (one.bits([key]).numpy() * 2.0**-RANDOM_BITS).astype(np.float32).astype(np.float64)
    expected = -np.log(-np.log1p(-v))
    np.testing.assert_allclose(one.gumbel([key]).numpy(), expected, rtol=1e-5, atol=2e-6)


class ExtremeBits(TokenNoise):
    """Noise whose bits are the smallest and the largest there are."""

    def bits(self, keys: object, token_ids: object = None) -> torch.Tensor:
        return torch.tensor([[0, 1, 2**RANDOM_BITS - 2, 2**RANDOM_BITS - 1]])


def test_gumbel_noise_is_finite_for_the_smallest_and_largest_bits() -> None:
    values = ExtremeBits(4, Workspace(torch.device("cpu"))).gumbel([0]).tolist()[0]
    assert all(math.isfinite(value) for value in values)
    assert 37 < values[0] < 37.5 and -2.9 < values[3] < -2.8


@pytest.mark.parametrize(
    "logits",
    [[0.0] * 7, [2.0, 1.0, 0.0, -1.0, -2.0], [0.0, -6.0, -8.0], [5.0, 5.0, 0.0, 5.0]],
    ids=["flat", "slope", "rare tokens", "ties"],
)
@pytest.mark.parametrize("along", ["seed", "choice", "position"])
def test_the_largest_of_logit_plus_noise_is_drawn_with_its_softmax_probability(along: str, logits: list[float]) -> None:
    draws = 100_000
    winners = (noise(len(logits)).gumbel(keys_along(along, draws)) + torch.tensor(logits)).argmax(dim=1)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    expected = draws * probabilities
    observed = np.bincount(winners.numpy(), minlength=len(logits))
    deviation = np.abs(observed - expected) / np.sqrt(expected * (1 - probabilities))
    assert deviation.max() < 4, f"observed {observed}, expected {expected}"
