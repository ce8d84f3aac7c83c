"""What a captured decode step fixes: it stays while sequences grow, come and go, and whatever lengths they have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.step_staging import StepStaging
from octavo.kernels.triton.decode_plan import DecodeRows, first_visible
from octavo.kernels.triton.paged_decode import DecodeSpec, PagedDecode

CPU = torch.device("cpu")


def rows_of(lengths, size, window=None):
    """Single tokens of sequences with `lengths` columns, padded to `size`."""
    columns = np.zeros(size, dtype=np.int64)
    columns[: len(lengths)] = lengths
    counts = np.zeros(size, dtype=np.int64)
    counts[: len(lengths)] = 1
    first = first_visible(columns, window, None, None)
    return DecodeRows(np.arange(size), counts, first, columns, np.arange(size) * 10_000 * (columns > 0))


class Steps:
    """Plans of one group of layers, sent as a cache sends them."""

    def __init__(self, window=None, codec="f16"):
        self.window = window
        self.staging = StepStaging(CPU)
        spec = DecodeSpec(16, 8, 128, 128, 16, codec, codec, scale=1.0, window=window)
        self.decode = PagedDecode(spec, CPU, self.staging)
        self.plan([40_000] * 64, 64)  # buffers are as large as they get

    def plan(self, lengths, size):
        self.staging.begin()
        work = self.decode.plan(rows_of(lengths, size, self.window), fixed=True)
        self.staging.send()
        return work

    def fixtures(self, batches, size):
        return {(self.plan(lengths, size), self.decode.fixture)[1] for lengths in batches}


@pytest.mark.parametrize("window", [None, 512])
def test_a_batch_that_grows_by_thousands_of_tokens_keeps_its_launches(window):
    steps = Steps(window)
    batches = [[1000 + n, 950 + n, 1050 + n] for n in range(0, 9000, 7)]
    assert len(steps.fixtures(batches, 4)) == 1
    # A window leaves its first chunk behind every few steps.
    assert steps.decode.plans_reused > (20 if window is None else 2) * steps.decode.plans_built


@pytest.mark.parametrize("size", [1, 4, 8, 16, 48])
def test_even_batches_of_one_size_share_their_launches_however_many_rows_are_real(size):
    batches = [[3000 + 10 * i for i in range(count)] for count in range(size * 2 // 3 + 1, size + 1)]
    assert len(Steps().fixtures(batches, size)) <= (1 if size < 33 else 2)  # many are not cut, and need no merge


@pytest.mark.parametrize("size", [8, 64])
def test_ragged_batches_of_one_size_share_their_launches(size):
    rng = np.random.default_rng(0)
    batches = [[16_000, *rng.integers(80, 700, count - 1).tolist()] for count in range(size // 2 + 2, size + 1)]
    assert len(Steps().fixtures(batches, size)) == 1


@pytest.mark.parametrize("settings", [{}, {"window": 100}, {"codec": "q8_0"}], ids=str)
def test_few_kinds_of_launches_serve_random_batches(settings):
    rng = np.random.default_rng(1)
    steps = Steps(**settings)
    batches = [np.exp(rng.uniform(0, 10, rng.integers(5, 9))).astype(int).tolist() for _ in range(300)]
    assert len(steps.fixtures(batches, 8)) <= 12


def test_padded_rows_have_items_that_do_nothing():
    work = Steps().plan([500, 90], 4)
    assert (work.items[work.items[:, 1] == 0, 2:4] == 0).all()  # no columns
    assert sorted(set(work.items[work.items[:, 1] > 0, 7].tolist())) == [0, 1]


def test_what_comes_after_another_batch_is_the_same_as_if_it_came_alone():
    batch = [900, 40, 7000]
    alone, later = Steps(), Steps()
    later.plan([30] * 4, 4)
    assert np.array_equal(alone.plan(batch, 4).items, later.plan(batch, 4).items)
