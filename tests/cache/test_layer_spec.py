"""`LayerSpec` validation and windows, groups, and the arithmetic of sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from octavo.cache.spec import CacheGroup, LayerSpec, group_layers
from octavo.errors import LoadError
from octavo.step_batch import StorageKind

FULL = LayerSpec("full", 8, 2, 64, 64, 0.125)
SLIDING = LayerSpec("sliding", 8, 2, 64, 64, 0.125, window=20)
CHUNKED = LayerSpec("chunked", 8, 2, 64, 64, 0.125, window=24)
LATENT = LayerSpec("latent", 16, 1, 576, 512, 0.1)
RECURRENT = LayerSpec("recurrent", 8, 1, 128, 64, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "global"},
        {"num_q_heads": 0},
        {"num_kv_heads": 3},
        {"k_dim": -64},
        {"v_dim": 2**31},
        {"k_dim": 64.0},
        {"num_q_heads": True},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"softcap": float("inf")},
        {"softcap": 0.0},
        {"window": 128},
        {"kind": "sliding"},
        {"kind": "chunked", "window": 0},
        {"kind": "latent"},
        {"kind": "latent", "num_kv_heads": 1, "v_dim": 65},
    ],
    ids=str,
)
def test_an_impossible_layer_is_refused_as_a_load_error(change: dict[str, Any]) -> None:
    with pytest.raises(LoadError):
        dataclasses.replace(FULL, **change)


def test_layers_with_equal_specs_share_a_group_in_order_of_first_appearance() -> None:
    equal_to_sliding = dataclasses.replace(SLIDING)
    groups = group_layers([SLIDING, SLIDING, FULL, equal_to_sliding, RECURRENT, FULL])
    assert groups == (CacheGroup(SLIDING, (0, 1, 3)), CacheGroup(FULL, (2, 5)), CacheGroup(RECURRENT, (4,)))


@pytest.mark.parametrize("layers", [(), (1, 1), (2, 1), (-1, 0)])
def test_a_group_lists_its_layers_ascending(layers: tuple[int, ...]) -> None:
    with pytest.raises(LoadError):
        CacheGroup(FULL, layers)


def test_windows_and_states_are_bounded_and_the_rest_is_not() -> None:
    assert [spec.bounded for spec in (FULL, LATENT, SLIDING, CHUNKED, RECURRENT)] == [False, False, True, True, True]


def test_a_sliding_token_sees_exactly_its_last_window_of_positions() -> None:
    assert [SLIDING.first_visible(p) for p in (0, 18, 19, 20, 21, 40)] == [0, 0, 0, 1, 2, 21]


def test_a_chunked_token_sees_its_own_chunk_from_its_start() -> None:
    assert [CHUNKED.first_visible(p) for p in (0, 23, 24, 47, 48)] == [0, 0, 24, 24, 48]


def test_a_full_token_sees_everything_and_a_recurrent_one_reads_no_earlier_row() -> None:
    assert (FULL.first_visible(1000), LATENT.first_visible(1000), RECURRENT.first_visible(1000)) == (0, 0, 1000)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("max_append", [1, 7, 16, 33])
@pytest.mark.parametrize(
    "spec", [SLIDING, CHUNKED, dataclasses.replace(SLIDING, window=1)], ids=lambda s: f"{s.kind}{s.window}"
)
def test_a_trimmed_window_reaches_but_never_exceeds_its_block_bound(
    spec: LayerSpec, max_append: int, block_size: int
) -> None:
    held = [
        (start + max_append - 1) // block_size - spec.first_visible(start) // block_size + 1 for start in range(2000)
    ]
    bound = CacheGroup(spec, (0,)).max_blocks(StorageKind.PAGED, 4000, block_size, max_append)
    assert max(held) <= bound
    if spec.kind == "sliding":
        assert max(held) == bound


def test_only_unbounded_groups_of_dense_sequences_take_blocks() -> None:
    specs = (FULL, LATENT, SLIDING, CHUNKED, RECURRENT)
    blocks = {
        storage: [CacheGroup(spec, (0,)).max_blocks(storage, 100, 16, None) for spec in specs]
        for storage in StorageKind
    }
    assert blocks == {StorageKind.DENSE: [7, 7, 0, 0, 0], StorageKind.PAGED: [7, 7, 7, 7, 0]}


def test_kept_tokens_add_their_blocks_to_a_windows_bound() -> None:
    group = CacheGroup(SLIDING, (0,))
    without = group.max_blocks(StorageKind.PAGED, 4000, 16, 1)
    assert group.max_blocks(StorageKind.PAGED, 4000, 16, 1, keep=17) == without + 2


def test_sizes_beyond_32_bits_are_exact() -> None:
    group = CacheGroup(LATENT, tuple(range(100)))
    assert group.bytes_per_token(1152, 2**30) == 100 * (1152 + 2**30)
    assert group.bytes_per_block(64, 1152, 2**30) * (2**31 - 1) == 64 * 100 * (1152 + 2**30) * (2**31 - 1)
    assert CacheGroup(FULL, (0,)).max_blocks(StorageKind.PAGED, 2**40 + 1, 16, None) == 2**36 + 1
