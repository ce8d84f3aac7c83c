"""Draws by the kernels: the tokens that the sampler draws from the same logits on a CPU."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.engine.sampler import Sampler, SamplerRow
from octavo.engine.sampling_device import draw_settings
from octavo.engine.sampling_random import TokenNoise
from octavo.engine.sampling_workspace import Workspace
from octavo.kernels.draws import draw_tokens
from octavo.sampling_params import SamplingParams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = 700


def draw(logits, rows, listed=64):
    hashes = TokenNoise(logits.shape[1], Workspace(DEVICE)).hashes
    return draw_tokens(logits.to(DEVICE), hashes, draw_settings(rows, logits.shape[1], DEVICE), listed).tolist()


def row(position, **params):
    return SamplerRow(
        SamplingParams(**params), seed=7, choice=0, position=position, prompt_token_ids=[], output_token_ids=[]
    )


def logits_of(rows, spread=3.0):
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(0)) * spread


PARAMS = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.0, "min_p": 0.2},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 2.0, "top_p": 0.5},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0, "top_k": 3},
]


@pytest.mark.parametrize("params", PARAMS[:-1], ids=str)
def test_rows_get_the_tokens_that_the_sampler_draws_on_a_cpu(params):
    rows = [row(position, **params) for position in range(12)]
    logits = logits_of(len(rows))
    drawn = draw(logits, rows)
    assert drawn == Sampler(VOCABULARY, "cpu").sample(logits, rows).token_ids
    assert len(set(drawn)) > 3


@pytest.mark.parametrize("listed", [16, 256])
@pytest.mark.parametrize("whole", [False, True], ids=["distinct", "ties"])
def test_rows_of_all_kinds_are_drawn_together_whether_their_tokens_are_listed_or_not(listed, whole):
    wide = [{"temperature": 1.0, "top_k": 300}, {"temperature": 3.0, "top_p": 0.99}]
    rows = [row(position, **params) for position, params in enumerate(PARAMS + wide)]
    logits = logits_of(len(rows))
    logits = logits.round() if whole else logits
    assert draw(logits, rows, listed) == Sampler(VOCABULARY, "cpu").sample(logits, rows).token_ids


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


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="torch sees no CUDA device")
def test_a_draw_on_a_gpu_waits_for_nothing_and_equals_the_one_on_a_cpu():
    vocabulary = 151_936
    rows = [row(position, **PARAMS[position % len(PARAMS)]) for position in range(32)]
    logits = torch.randn(32, vocabulary, generator=torch.Generator().manual_seed(1)) * 3
    sampler, there = Sampler(vocabulary, "cuda"), logits.cuda()
    sampler.draw(there, rows)
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = sampler.draw(there, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sampler.read(drawn).token_ids == Sampler(vocabulary, "cpu").sample(logits, rows).token_ids
