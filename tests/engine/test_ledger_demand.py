"""What K/V takes for sequences of different lengths: the example of docs/memory.md, and what the pool would say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.cache_pool import CachePool
from octavo.cache.spec import LayerSpec, group_layers
from octavo.engine.kv_demand import KVDemand
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS

F16 = (CODECS["f16"], CODECS["f16"])
DOCUMENT = Path(__file__).parents[2] / "docs" / "memory.md"
# 32 layers with 8 K/V heads of 128: an 8B model of the Llama 3 family.
LLAMA_8B = group_layers([LayerSpec("full", 32, 8, 128, 128, 128**-0.5)] * 32)
WINDOWS = group_layers([LayerSpec("full", 4, 2, 16, 16, 0.25), LayerSpec("sliding", 4, 2, 16, 16, 0.25, 50)])


def demand(groups=LLAMA_8B, storage=StorageKind.PAGED, codecs=F16, block_size=16, append=2048, keep=0) -> KVDemand:
    return KVDemand(groups, codecs, storage, block_size, append, keep=keep)


def test_one_long_and_seven_short_sequences_take_their_own_tokens_not_eight_times_the_longest():
    ragged = demand().bytes_of([131_072] + [8_192] * 7)
    padded = demand().bytes_of([131_072] * 8)
    assert demand().bytes_per_token(LLAMA_8B[0]) == 131_072
    assert ragged == (131_072 + 7 * 8_192) * 131_072 == 23 << 30
    assert padded == 128 << 30
    assert round(padded / ragged, 2) == 5.57


def test_the_document_gives_the_figures_of_that_example():
    text = DOCUMENT.read_text(encoding="utf-8")
    ragged, padded = demand().bytes_of([131_072] + [8_192] * 7), demand().bytes_of([131_072] * 8)
    for figure in (f"{ragged >> 30} GiB", f"{padded >> 30} GiB", f"{padded / ragged:.2f}"):
        assert figure in text


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_token_takes_what_its_codec_stores(codec):
    per_token = demand(codecs=(CODECS[codec], CODECS["f16"])).bytes_per_token(LLAMA_8B[0])
    assert per_token == 32 * 8 * (CODECS[codec].bytes_per_row(128) + 256)


def test_a_begun_block_counts_whole():
    per_block = demand().bytes_per_block
    assert demand().bytes_of([1]) == demand().bytes_of([16]) == per_block
    assert demand().bytes_of([17, 1]) == 3 * per_block


def test_a_window_stops_growing_in_blocks_and_is_a_ring_where_sequences_are_dense():
    per_token = demand(WINDOWS).bytes_per_token(WINDOWS[1])
    paged, dense = demand(WINDOWS, append=16), demand(WINDOWS, StorageKind.DENSE)
    grown = paged.bytes_of([100_000]) - paged.bytes_of([10_000])
    assert grown == (100_000 - 10_000) * per_token  # of the full layer alone, which has the same shape
    assert dense.bytes_of([100]) == (112 + 50) * per_token
    assert dense.windowed_bytes(3, 1000) == (3 * 50 + 16) * per_token


def test_windows_in_blocks_have_a_quarter_more_for_cached_prefixes():
    paged = demand(WINDOWS, append=16)
    _, live = paged.blocks(10_000)
    assert paged.windowed_blocks(WINDOWS[1], 8, 10_000) == 8 * live + 2 * live


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    st.sampled_from((16, 32, 64)),
    st.sampled_from((1, 7, 64, 2048)),
    st.sampled_from(tuple(StorageKind)),
    st.sampled_from((0, 64, 1024)),
)
def test_demand_is_what_the_pool_would_set_aside(lengths, block_size, append, storage, keep):
    pool = CachePool(WINDOWS, block_size, (10_000, 10_000), 5, max_append_tokens=append)
    found = demand(WINDOWS, storage, block_size=block_size, append=append, keep=keep)
    needed = [pool.blocks_needed(tokens, storage, keep) for tokens in lengths]
    assert [found.blocks(tokens) for tokens in lengths] == needed
    per_token = found.bytes_per_token(WINDOWS[0])
    blocks = sum(map(sum, needed))
    rings = len(lengths) * 50 * (storage is StorageKind.DENSE)
    assert found.bytes_of(lengths) == (blocks * block_size + rings) * per_token
