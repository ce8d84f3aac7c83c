"""Rows do not touch each other: faults stay in their row, and a batch gives what a row alone gives."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import torch
from sampler_cases import random_logits, random_row, row, sample

from octavo.engine.sampler import Sampler


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Rows of a few thousand tokens gain nothing from threads, and much is lost where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


UNSOUND = {
    "one NaN": [0.0, math.nan, 1.0, 2.0],
    "NaN below others": [5.0, 1.0, 1.0, math.nan],
    "plus infinity": [0.0, math.inf, 0.0, 0.0],
    "both infinities": [-math.inf, math.inf, 0.0, 0.0],
    "all minus infinity": [-math.inf] * 4,
    "all NaN": [math.nan] * 4,
}


@pytest.mark.parametrize("bad", list(UNSOUND.values()), ids=list(UNSOUND))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.5, "top_p": 0.5},
        {"temperature": 0.5, "top_k": 2, "min_p": 0.1},
        {"logit_bias": {2: 100.0}, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_an_unsound_row_gets_an_error_and_its_neighbours_do_not_notice(
    bad: list[float], settings: dict[str, object]
) -> None:
    good = [0.5, 3.0, -1.0, 2.0]
    rows = [row([1], [2], seed=3, logprobs=2, **settings) for _ in range(3)]
    mixed = sample([good, bad, good], *rows)
    alone = sample([good], rows[0])
    assert mixed.errors[0] is mixed.errors[2] is None
    assert mixed.errors[1] is not None and "position 2" in mixed.errors[1] and "\n" not in mixed.errors[1]
    assert mixed.token_ids[1] == -1 and mixed.logprobs[1] is None
    assert [mixed.token_ids[0], mixed.token_ids[2]] == alone.token_ids * 2
    assert [mixed.logprobs[0], mixed.logprobs[2]] == alone.logprobs * 2


@pytest.mark.parametrize("vocab_size", [97, 1021, 5003])
def test_a_row_gives_bitwise_the_same_alone_in_a_mixed_batch_and_in_another_order(vocab_size: int) -> None:
    rng = random.Random(vocab_size)
    rows = [random_row(rng, vocab_size) for _ in range(40)]
    logits = random_logits(40, vocab_size)
    sampler = Sampler(vocab_size, "cpu")
    whole = sampler.sample(logits, rows)
    order = list(range(40))
    rng.shuffle(order)
    shuffled = sampler.sample(logits[order], [rows[i] for i in order])
    assert shuffled.token_ids == [whole.token_ids[i] for i in order]
    assert shuffled.logprobs == [whole.logprobs[i] for i in order]
    for i in range(40):
        alone = Sampler(vocab_size, "cpu").sample(logits[i : i + 1], [rows[i]])
        assert (alone.token_ids, alone.logprobs) == ([whole.token_ids[i]], [whole.logprobs[i]])


def test_rows_of_a_strided_view_give_the_same_as_a_copy() -> None:
    wide = random_logits(6, 2 * 97)[:, ::2]
    rng = random.Random(4)
    rows = [random_row(rng, 97) for _ in range(6)]
    sampler = Sampler(97, "cpu")
    assert sampler.sample(wide, rows) == sampler.sample(wide.contiguous(), rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("vocab_size", [97, 49_152, 151_936])
def test_on_a_gpu_rows_are_independent_and_draw_what_the_cpu_draws(vocab_size: int) -> None:
    rng = random.Random(vocab_size)
    rows = [random_row(rng, vocab_size) for _ in range(32)]
    logits = random_logits(32, vocab_size)
    logits[5, 3] = math.nan
    sampler = Sampler(vocab_size, "cuda")
    whole = sampler.sample(logits.cuda(), rows)
    for i in range(32):
        alone = sampler.sample(logits[i : i + 1].cuda(), [rows[i]])
        assert (alone.token_ids, alone.logprobs) == ([whole.token_ids[i]], [whole.logprobs[i]])
    on_cpu = Sampler(vocab_size, "cpu").sample(logits, rows)
    assert whole.errors == on_cpu.errors and whole.errors[5] is not None
    # Logarithms and exponentials may differ in their last bit, which can decide a near tie.
    assert sum(a != b for a, b in zip(whole.token_ids, on_cpu.token_ids, strict=True)) <= 1
