"""Attention of single tokens of several sequences at once, against its definition in float64."""

from __future__ import annotations

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.side_by_side import attend_side_by_side

LENGTHS = (5, 301, 1, 64)


def case(num_q, num_kv, k_dim, v_dim):
    """Queries, keys and values side by side, hidden columns full of another sequence's."""
    generator = torch.Generator().manual_seed(num_q)
    q = torch.randn(len(LENGTHS), num_q, k_dim, generator=generator)
    k = torch.randn(num_kv, len(LENGTHS), max(LENGTHS), k_dim, generator=generator) * 3
    v = torch.randn(num_kv, len(LENGTHS), max(LENGTHS), v_dim, generator=generator)
    hidden = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None]
    return q, k, v, hidden


@pytest.mark.parametrize("softcap", [None, 4.0], ids=["plain", "softcap"])
@pytest.mark.parametrize("with_sinks", [False, True], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("shape", [(4, 2, 64, 64), (7, 1, 80, 80), (6, 6, 48, 32)], ids=str)
def test_each_sequence_has_what_the_definition_gives_it(shape, with_sinks, softcap):
    q, k, v, hidden = case(*shape)
    sinks = torch.linspace(-4, 6, shape[0]) if with_sinks else None
    flat = (each.reshape(each.shape[0], -1, each.shape[-1]) for each in (k, v))
    got = attend_side_by_side(q, *flat, hidden, scale=0.2, softcap=softcap, sinks=sinks)
    assert got.shape == (len(LENGTHS), shape[0], shape[3])
    for i, length in enumerate(LENGTHS):
        keys, values = (each[:, i, :length].transpose(0, 1) for each in (k, v))
        expected = reference.attention(
            q[i : i + 1].double(), keys, values, q_start=length - 1, scale=0.2, softcap=softcap, sink_logits=sinks
        )
        assert (got[i] - expected[0]).abs().max() < 1e-5 * expected.abs().max()
        assert (got[i] * 1.01 - expected[0]).abs().max() > 1e-5 * expected.abs().max()


def test_sequences_that_see_every_key_need_no_mask():
    q, k, v, hidden = case(4, 2, 64, 64)
    flat = [each.reshape(2, -1, 64) for each in (k, v)]
    masked = attend_side_by_side(q, *flat, torch.zeros_like(hidden), scale=0.2, softcap=None)
    assert torch.equal(attend_side_by_side(q, *flat, None, scale=0.2, softcap=None), masked)
