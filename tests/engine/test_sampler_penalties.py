"""Logit bias and penalties: what each looks at, and the order in which they act."""

from __future__ import annotations

import numpy as np
import pytest
from sampler_cases import naive_adjust, one, random_logits, row, sample

from octavo.engine import sampling_adjustments


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    assert one([3.0, 2.0], prompt=[0], repetition_penalty=2.0) == 1  # 1.5 against 2
    assert one([-1.0, -1.5], prompt=[0], repetition_penalty=2.0) == 1  # -2 against -1.5
    assert one([-1.0, -0.75], prompt=[0], repetition_penalty=0.5) == 0  # -0.5 against -0.75


def test_repetition_penalty_counts_a_repeated_token_once_and_sees_prompt_and_output() -> None:
    assert one([3.0, 1.4, 0.0], prompt=[0, 0, 0, 2], output=[0, 2, 0], repetition_penalty=2.0) == 0
    assert one([3.0, 2.0, 1.8], prompt=[0], output=[1], repetition_penalty=2.0) == 2


def test_presence_and_frequency_penalties_look_at_the_output_only() -> None:
    assert one([3.0, 2.5], prompt=[0, 0, 0], presence_penalty=10.0, frequency_penalty=10.0) == 0
    assert one([3.0, 2.5], output=[0], presence_penalty=1.0) == 1


def test_presence_penalty_is_flat_and_frequency_penalty_grows_with_the_count() -> None:
    output = [2, 0, 1, 0, 2, 0]  # out of order and repeated: 0 three times, 1 once, 2 twice
    assert one([3.0, 1.5, 1.4], output=output, presence_penalty=1.0) == 0
    assert one([3.0, 1.5, 1.4], output=output, frequency_penalty=1.0) == 1
    assert one([3.0, -9.0, 1.4], output=output, frequency_penalty=0.5) == 0
    assert one([3.0, -9.0, 2.6], output=output, frequency_penalty=0.5) == 2


def test_bias_comes_before_the_repetition_penalty() -> None:
    # (1 + 3) / 2 = 2 loses against 3; 1 / 2 + 3 = 3.5 would win.
    assert one([1.0, 3.0], prompt=[0], logit_bias={0: 3.0}, repetition_penalty=2.0) == 1


def test_the_repetition_penalty_comes_before_the_presence_penalty() -> None:
    # 4 / 2 - 1 = 1 loses against 1.2; (4 - 1) / 2 = 1.5 would win.
    assert one([4.0, 1.2], output=[0], repetition_penalty=2.0, presence_penalty=1.0) == 1


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 2.0])
def test_a_bias_of_100_forces_and_minus_100_forbids_a_token(temperature: float) -> None:
    logits = random_logits(1, 97)[0].tolist()
    best = int(np.argmax(logits))
    for seed in range(50):
        assert one(logits, seed=seed, temperature=temperature, logit_bias={13: 100.0}) == 13
        assert one(logits, seed=seed, temperature=temperature, logit_bias={best: -100.0}) != best


def test_penalties_and_bias_on_the_same_and_on_other_tokens_add_up() -> None:
    rows = [
        row([1, 2], [2, 3, 3], logit_bias={3: 1.5, 4: -2.0}, repetition_penalty=1.5, frequency_penalty=0.25),
        row([], [], presence_penalty=1.0),
        row([4], [], logit_bias={4: 0.5, 0: 0.25}),
    ]
    logits = random_logits(3, 5)
    expected = [int(np.argmax(naive_adjust(v, r))) for v, r in zip(logits.tolist(), rows, strict=True)]
    assert sample(logits, *rows).token_ids == expected


def test_few_tokens_and_many_are_told_apart_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(3, 400)
    penalties = {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.3, "logit_bias": {5: 2.0}}
    rows = [row(prompt=[7, 7, 399], output=[3, 3, 8], **penalties), row(output=[1], **penalties), row(**penalties)]
    sorted_tokens = sampling_adjustments.adjust(logits, rows)
    monkeypatch.setattr(sampling_adjustments, "_FEW", 400)
    assert sampling_adjustments.adjust(logits, rows).equal(sorted_tokens)
    assert not sorted_tokens.equal(logits)
