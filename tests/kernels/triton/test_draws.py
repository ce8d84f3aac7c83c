"""Draws by the kernels: the tokens that the sampler draws from the same logits on a CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.engine.sampler import Sampler, SamplerRow
from octavo.engine.sampling_random import TokenNoise, row_key
from octavo.engine.sampling_workspace import Workspace
from octavo.kernels.draws import draw_tokens
from octavo.sampling_params import SamplingParams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = 700


def draw(logits, rows):
    noise = TokenNoise(logits.shape[1], Workspace(DEVICE))
    keys = np.array([row_key(row.seed, row.choice, row.position) for row in rows], dtype=np.uint64).view(np.int64)
    temperatures = torch.tensor([row.params.temperature for row in rows])
    floors = torch.tensor([math.log(row.params.min_p) if row.params.min_p else -math.inf for row in rows])
    given = (torch.from_numpy(keys), temperatures, floors)
    return draw_tokens(logits.to(DEVICE), noise.hashes, *(each.to(DEVICE) for each in given)).tolist()


def row(position, **params):
    return SamplerRow(
        SamplingParams(**params), seed=7, choice=0, position=position, prompt_token_ids=[], output_token_ids=[]
    )


def logits_of(rows, spread=3.0):
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(0)) * spread


@pytest.mark.parametrize(
    "params", [{"temperature": 1.0}, {"temperature": 0.3}, {"temperature": 2.0, "min_p": 0.2}], ids=str
)
def test_rows_get_the_tokens_that_the_sampler_draws_on_a_cpu(params):
    rows = [row(position, **params) for position in range(24)]
    logits = logits_of(len(rows))
    drawn = draw(logits, rows)
    assert drawn == Sampler(VOCABULARY, "cpu").sample(logits, rows).token_ids
    assert len(set(drawn)) > 3


def test_temperature_zero_takes_the_best_and_the_first_of_equals():
    logits = logits_of(3)
    logits[1, 5] = logits[1, 400] = logits[1].max() + 1
    assert draw(logits, [row(i, temperature=t) for i, t in enumerate((0.0, 0.0, 1e-30))]) == [
        int(logits[0].argmax()),
        5,
        int(logits[2].argmax()),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_an_unsound_row_gets_no_token_and_leaves_the_others_alone(value):
    logits = logits_of(3)
    sound = draw(logits, [row(i, temperature=1.0) for i in range(3)])
    logits[1] = value if value < 0 else torch.where(torch.arange(VOCABULARY) == 9, value, logits[1])
    assert draw(logits, [row(i, temperature=1.0) for i in range(3)]) == [sound[0], -1, sound[2]]


def test_tokens_that_are_forbidden_are_never_drawn():
    logits = torch.full((8, VOCABULARY), -math.inf)
    logits[:, [3, 699]] = 0.0
    assert set(draw(logits, [row(i, temperature=5.0) for i in range(8)])) == {3, 699}


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="torch sees no CUDA device")
def test_a_draw_on_a_gpu_waits_for_nothing_and_equals_the_one_by_torch():
    vocabulary = 151_936
    rows = [row(position, temperature=0.8, min_p=0.0 if position % 2 else 0.01) for position in range(32)]
    logits = torch.randn(32, vocabulary, generator=torch.Generator().manual_seed(1)) * 3
    sampler, there = Sampler(vocabulary, "cuda"), logits.cuda()
    sampler.draw(there, rows)
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = sampler.draw(there, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sampler.read(drawn).token_ids == Sampler(vocabulary, "cpu").sample(logits, rows).token_ids
