"""Blocks of all layers in one piece: whose rows are whose, and that an engine computes the same from there."""

from __future__ import annotations

import pytest
import torch

from octavo.cache.spec import CacheGroup, LayerSpec, group_layers
from octavo.errors import CapacityError
from octavo.step_batch import FreshBlocks, StepBatch, StepRow, StorageKind
from octavo.storage import KVCache
from octavo.storage.block_memory import BlockMemory, allocate_layers
from octavo.storage.codecs import CODECS

CPU = torch.device("cpu")
BLOCK = 4


def spec_of(k_dim=32, v_dim=32):
    return LayerSpec("full", 4, 2, k_dim, v_dim, 0.2, None, None, sink_logits=False)


def group_of(layers, **dims):
    [group] = group_layers([spec_of(**dims)] * layers)
    return group


@pytest.mark.parametrize("codecs", [("f16", "f16"), ("q8_0", "q8_0"), ("f16", "q4_0"), ("turbo4", "bf16")])
@pytest.mark.parametrize("dims", [{}, {"v_dim": 64}])
def test_what_is_written_to_one_layers_rows_is_read_from_them_and_changes_no_others(codecs, dims):
    group, num_blocks = group_of(3, **dims), 5
    stores = allocate_layers(
        group, num_blocks, BLOCK, tuple(CODECS[name] for name in codecs), CPU, ring_rows=0, has_runs=False
    )
    [stride] = {store.stride for store in stores}
    rows = torch.tensor([block * stride * BLOCK + offset for block in range(num_blocks) for offset in range(BLOCK)])
    expected = []
    for layer, store in enumerate(stores):
        for side, (kept, dim) in enumerate(((store.blocks.k, group.spec.k_dim), (store.blocks.v, group.spec.v_dim))):
            values = torch.randn(len(rows), 2, dim, generator=torch.Generator().manual_seed(2 * layer + side))
            kept.write(rows, values)
            expected.append((kept, dim, CODECS[codecs[side]].round_trip(values)))
    for kept, dim, values in expected:
        out = torch.empty(2, len(rows), dim)
        kept.read_rows(rows, out)
        assert torch.equal(out, values.transpose(0, 1))
        blocks = torch.empty(2, 3 * BLOCK, dim)
        kept.read_blocks(torch.tensor([4, 0, 2]) * stride, BLOCK, blocks)
        picked = torch.cat([values[block * BLOCK : (block + 1) * BLOCK] for block in (4, 0, 2)])
        assert torch.equal(blocks, picked.transpose(0, 1))


def test_a_block_of_all_layers_lies_in_one_piece_its_keys_beside_its_values():
    stores = allocate_layers(group_of(3), 5, BLOCK, (CODECS["f16"],) * 2, CPU, ring_rows=0, has_runs=False)
    size = BLOCK * 2 * 32 * 2
    begins = [side.planes()["values"].data_ptr() for store in stores for side in (store.blocks.k, store.blocks.v)]
    assert [each - begins[0] for each in begins] == [size * place for place in range(6)]
    assert {store.stride for store in stores} == {6}


def test_where_sequences_may_be_dense_the_rows_of_a_layer_follow_one_another():
    stores = allocate_layers(group_of(2), 5, BLOCK, (CODECS["f16"],) * 2, CPU, ring_rows=7, has_runs=True)
    assert [store.stride for store in stores] == [1, 1]
    assert all(store.blocks.k.planes()["values"].shape == (5 * BLOCK, 2, 32) for store in stores)
    assert all(store.ring is not None and store.ring.v.planes()["values"].shape == (7, 2, 32) for store in stores)


def test_memory_that_is_not_there_is_refused_in_a_line_that_names_the_remedy():
    memory = BlockMemory(2, 1 << 40, BLOCK).at(0)
    with pytest.raises(CapacityError, match="bytes of K/V; lower --kv-budget"):
        memory((1 << 40) * BLOCK, 8, 128, dtype=torch.float32, device=CPU)


def caches(group: CacheGroup):
    """One whose rows follow one another, one whose blocks of all layers do."""
    for rings in (True, False):
        yield KVCache(
            [group],
            num_blocks=[8],
            block_size=BLOCK,
            max_seqs=2,
            max_context=32,
            codecs=(CODECS["f16"], CODECS["f16"]),
            device=CPU,
            rings=rings,
        )


def row(slot, start, num_tokens, fresh):
    blocks = (FreshBlocks(0, -(-start // BLOCK), fresh),) if fresh else ()
    return StepRow(slot, 1, StorageKind.PAGED, tuple(range(num_tokens)), start, blocks, (0,), sample=True)


@pytest.mark.parametrize("native", ["1", "0"])
def test_attention_gives_the_same_bits_from_either_layout(monkeypatch, native):
    monkeypatch.setenv("OCTAVO_PAGED_ATTENTION_NATIVE", native)
    steps = [
        StepBatch((row(0, 0, 6, (5, 2)), row(1, 0, 4, (7,)))),
        StepBatch((row(0, 6, 1, ()), row(1, 4, 1, (0,)))),
        StepBatch((row(1, 5, 1, ()), row(0, 7, 3, (3,)))),
    ]
    outputs = []
    for cache in caches(group_of(3)):
        draw = torch.Generator().manual_seed(5)
        attended = []
        for step in steps:
            cache.plan(step)
            for layer in range(3):
                q = torch.randn(step.num_tokens, 4, 32, generator=draw)
                k, v = torch.randn(2, step.num_tokens, 2, 32, generator=draw)
                attended.append(cache.attend(layer, q, k, v))
        outputs.append(torch.cat(attended))
    assert torch.equal(*outputs)


def test_a_dense_row_has_no_place_where_blocks_of_layers_lie_together():
    *_, cache = caches(group_of(3))
    dense = row(0, 0, 4, (1,))._replace(storage=StorageKind.DENSE)
    with pytest.raises(AssertionError, match="lie apart"):
        cache.plan(StepBatch((dense,)))
