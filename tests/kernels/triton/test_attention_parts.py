"""What memory is planned for is what the kernels are given."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.attention_parts import MOST_PROGRAMS, MOST_TILE_TOKENS, RAGGED_CUTS
from octavo.kernels.triton.decode_tiles import choose
from octavo.kernels.triton.paged_prefill import best_tile


@pytest.mark.parametrize(("bits", "codes"), [(4, False), (8, False), (16, False), (4, True), (8, True)])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("heads", [1, 4, 8])
def test_no_load_is_cut_into_more_parts_than_are_planned_for(bits, codes, dim, heads):
    rng = np.random.default_rng(0)
    for rows in (1, 3, 64, 300):
        for longest in (40, 3000, 130_000):
            lengths = rng.integers(0, longest, rows)
            most = choose(dim, bits, heads, lengths, codes)[2]
            assert most <= max(MOST_PROGRAMS // heads, rows * RAGGED_CUTS), (rows, longest)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("halves", [False, True])
def test_a_prefill_tile_has_no_more_tokens_than_are_planned_for(bits, dim, halves):
    assert best_tile(dim, bits, halves).block_m <= MOST_TILE_TOKENS
