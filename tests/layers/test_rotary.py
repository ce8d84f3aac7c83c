"""Rotary embedding: right for every row of any batch, and for every scaling that checkpoints state."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.errors import LoadError
from octavo.kernels import reference
from octavo.kernels.rows import rotate, rotate_heads
from octavo.layers.rope_scaling import RopeScaling
from octavo.layers.rotary import Rotary, rotary_frequencies

CPU = torch.device("cpu")


def rotary(dim=64, theta=1e4, scaling=None):
    return Rotary(dim, theta, scaling or RopeScaling(), 8192, CPU)


def test_equals_the_definition_up_to_high_positions():
    position = torch.tensor([0, 1, 2, 4095, 4096, 4097, 20000])
    x = torch.randn(len(position), 3, 64, generator=torch.Generator().manual_seed(0))
    inv_freq, _ = rotary_frequencies(64, 1e4, RopeScaling(), 8192)
    expected = reference.rotate(x, position, inv_freq)
    rotation = rotary().at(position, 20001)
    assert torch.allclose(rotate(x, rotation.cos, rotation.sin), expected, atol=1e-5)
    q, k, v = rotate_heads(x.clone(), 1, 1, rotation.cos, rotation.sin)
    assert torch.allclose(torch.cat((q, k), dim=1), expected[:, :2], atol=1e-5)
    assert torch.equal(v, x[:, 2:])


def test_each_single_token_of_a_batch_is_turned_by_its_own_position_whatever_the_strides():
    position = torch.tensor([7, 0, 300, 7, 41])
    x = torch.randn(5, 4, 64, generator=torch.Generator().manual_seed(1))
    rotation = rotary().at(position, 301)
    expected = rotate(x, rotation.cos, rotation.sin)
    transposed = x.transpose(0, 1).contiguous().transpose(0, 1)
    sliced = torch.cat((x, x), dim=1)[:, :4]
    assert transposed.stride() != x.stride()
    for layout in (transposed, sliced):
        assert torch.equal(rotate(layout, rotation.cos, rotation.sin), expected)
        q, _, _ = rotate_heads(layout.clone(), 4, 0, rotation.cos, rotation.sin)
        assert torch.allclose(q, expected, atol=1e-6)
    for row in range(5):
        alone = rotary().at(position[row : row + 1], 301)
        assert torch.equal(rotate(x[row : row + 1], alone.cos, alone.sin)[0], expected[row])


def test_a_position_has_the_same_bits_whichever_was_asked_for_first():
    first, second = rotary(), rotary()
    first.at(torch.tensor([9000]), 9001)
    second.at(torch.tensor([3]), 4)
    position = torch.tensor([3, 4095, 9000])
    assert torch.equal(first.at(position, 9001).cos, second.at(position, 9001).cos)
    assert torch.equal(first.at(position, 9001).sin, second.at(position, 9001).sin)


SCALINGS = {
    "linear": (RopeScaling("linear", factor=4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_position_embeddings=1024),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    ),
    "yarn": (
        RopeScaling("yarn", 4.0, original_max_position_embeddings=2048),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    ),
    "yarn-mscale": (
        RopeScaling("yarn", 4.0, original_max_position_embeddings=2048, mscale=1.0, mscale_all_dim=0.7, beta_fast=16.0),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 2048,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
            "beta_fast": 16.0,
        },
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_equal_those_of_transformers(name):
    ours, theirs = SCALINGS[name]
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": 5e5, **theirs},
    )
    expected, magnitude = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, CPU)
    inv_freq, factor = rotary_frequencies(64, 5e5, ours, 8192)
    assert torch.allclose(inv_freq, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(magnitude)
    plain, _ = rotary_frequencies(64, 5e5, RopeScaling(), 8192)
    assert not torch.allclose(inv_freq, plain)


def test_stored_factors_divide_the_frequencies_and_must_match_the_head_size():
    factors = tuple(float(i + 1) for i in range(32))
    inv_freq, _ = rotary_frequencies(64, 1e4, RopeScaling(factors=factors), 8192)
    plain, _ = rotary_frequencies(64, 1e4, RopeScaling(), 8192)
    assert torch.equal(inv_freq, plain / torch.tensor(factors))
    with pytest.raises(LoadError, match="31 factors"):
        rotary_frequencies(64, 1e4, RopeScaling(factors=factors[:31]), 8192)
