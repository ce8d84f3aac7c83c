"""Masks add -inf to what is forbidden and change nothing else, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.engine.sampler import Sampler, SamplerRow
from octavo.engine.sampling_mask import MaskTable, TokenMasks
from octavo.engine.sampling_workspace import Workspace
from octavo.sampling_params import SamplingParams

VOCAB = 77


def masks_of(allowed: dict[int, list[int]]) -> TokenMasks:
    """Of the rows that are keys, with the tokens that they may have."""
    bits = np.zeros((len(allowed), -(-VOCAB // 32)), dtype=np.uint32)
    for index, tokens in enumerate(allowed.values()):
        for token in tokens:
            bits[index, token // 32] |= np.uint32(1 << token % 32)
    return TokenMasks(list(allowed), bits.view(np.int32))


def table() -> MaskTable:
    device = torch.device("cpu")
    return MaskTable(device, Workspace(device))


def logits_of(rows: int) -> torch.Tensor:
    logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows))
    logits[:, ::7] = -0.0
    return logits


@pytest.mark.parametrize("rows", [[0], [2], [0, 1, 2], [0, 2]], ids=str)
def test_forbidden_tokens_are_minus_infinity_and_the_others_keep_their_bits(rows):
    logits = logits_of(3)
    before = logits.clone()
    allowed = {row: [row, 7, 31, 32, 63, 64, VOCAB - 1] for row in rows}
    masked = table().apply(logits, masks_of(allowed))
    for row in range(3):
        for token in range(VOCAB):
            if row in allowed and token not in allowed[row]:
                assert masked[row, token] == -torch.inf
            else:
                assert masked[row, token].view(torch.int32) == before[row, token].view(torch.int32)
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))


def test_without_masks_the_logits_are_the_same_object():
    logits = logits_of(2)
    assert table().apply(logits, None) is logits


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_unsound_where_it_is_masked_is_still_found(bad):
    logits = logits_of(2)
    logits[0, 50] = bad
    row = SamplerRow(SamplingParams(), 0, 0, 4, (), ())
    found = Sampler(VOCAB, "cpu").sample(logits, [row, row], masks_of({0: [3, 4], 1: [5]}))
    assert found.errors[0] is not None and "NaN" in found.errors[0]
    assert (found.errors[1], found.token_ids[1]) == (None, 5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, top_p=0.3, min_p=0.1),
        SamplingParams(temperature=2.0, repetition_penalty=2.0, presence_penalty=3.0, logit_bias={4: 20.0, 9: -5.0}),
    ],
    ids=["greedy", "plain", "top-k", "top-p", "penalties"],
)
def test_what_is_sampled_is_allowed_and_as_if_the_others_had_no_probability(params):
    logits, allowed = logits_of(1), [2, 9, 33, 70]
    masks = masks_of({0: allowed})
    without = torch.full_like(logits, -torch.inf)
    without[0, allowed] = logits[0, allowed]
    for seed in range(40):
        row = SamplerRow(params, seed, 0, 4, (4, 9), (2,))
        sampler = Sampler(VOCAB, "cpu")
        [token] = sampler.sample(logits, [row], masks).token_ids
        assert token in allowed
        assert [token] == sampler.sample(without, [row]).token_ids
