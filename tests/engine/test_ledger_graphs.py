"""What the ledger sets aside for steps of a GPU: those that are recorded, and those whose keys are gathered."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo.cache.spec import LayerSpec, group_layers
from octavo.config import EngineConfig
from octavo.engine.ledger import Ledger, plan_memory
from octavo.engine.resident import Resident
from octavo.engine.working_memory import Serving, undo_bytes, workspace_bytes
from octavo.models.loaders import open_checkpoint
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS

LAYOUT = (LayerSpec("full", 4, 2, 16, 16, 0.25), LayerSpec("sliding", 4, 2, 16, 16, 0.25, 32))
SPARE_BLOCKS = 16 * 2 * (16 + 16) * 2 * len(LAYOUT)


@pytest.fixture(scope="module")
def model(directory):
    return open_checkpoint(directory("llama")).config


def plan(model, device: str, *, gather: bool = False, **settings) -> Ledger:
    serving = Serving(StorageKind.PAGED, (CODECS["f16"], CODECS["f16"]), torch.device(device), gather=gather)
    config = EngineConfig(**settings)
    return plan_memory(model, LAYOUT, config, serving=serving, resident=Resident(1000), available=64 << 30)


def test_a_cpu_records_nothing(model):
    assert plan(model, "cpu").graph_bytes == 0


def test_a_gpu_sets_aside_the_logits_of_all_sequences_twice_and_room_for_the_records(model):
    few, many = (plan(model, "cuda", max_num_seqs=n).graph_bytes for n in (1, 101))
    assert many - few >= 100 * 2 * model.vocab_size * 4
    assert few > 64 << 20


def test_without_graphs_only_the_padding_of_steps_has_a_place(model):
    assert plan(model, "cuda", cuda_graphs=False).graph_bytes == SPARE_BLOCKS


def test_what_is_set_aside_is_not_given_to_k_v(model):
    with_graphs, without = plan(model, "cuda", max_num_seqs=2), plan(model, "cuda", max_num_seqs=2, cuda_graphs=False)
    assert with_graphs.overhead_bytes - without.overhead_bytes == with_graphs.graph_bytes - SPARE_BLOCKS
    assert with_graphs.total_bytes <= with_graphs.available_bytes


def test_a_gpu_sets_aside_what_parts_of_long_rows_leave_to_be_merged(model):
    wide = replace(model, max_position_embeddings=1 << 16)

    def step(context: int) -> int:
        """Bytes that one more token takes, where a table of rotary positions grows as well."""
        before, after = (
            plan(wide, "cuda", max_num_seqs=2, max_context=length, prefill_chunk=512).workspace_bytes
            for length in (context, context + 1)
        )
        return after - before

    of_a_part = (2 * 512 + 2 * 128) * LAYOUT[0].num_q_heads * (LAYOUT[0].v_dim + 1) * 4
    assert step(8192) - step(4096) == 2 * of_a_part
    assert step(16384) - step(12288) == of_a_part


def test_a_gpu_that_gathers_sets_aside_what_it_takes_of_several_sequences_at_a_time(model):
    def workspace(max_num_seqs: int, device: str = "cuda") -> int:
        """Bytes but for what the number of sequences takes of the sampler, and of masks."""
        ledger = plan(model, device, gather=True, max_num_seqs=max_num_seqs, max_context=256, max_batch_tokens=256)
        return ledger.workspace_bytes - max_num_seqs * 8 * model.vocab_size

    copied = len(LAYOUT) * 256 * 2 * (16 + 16 + 16) * 4  # of K and V, and once more while they are decoded
    windowed = 256 * 2 * 48 * 4  # whose span is a chunk of 256 longer
    assert workspace(3) - workspace(1) == 2 * (copied + windowed)
    assert workspace(6000) == workspace(7000)
    assert workspace(3, "cpu") == workspace(1, "cpu")


def test_dense_sequences_that_torch_attends_to_together_are_copied_like_paged_ones_and_those_in_rings_one_by_one(model):
    def workspace(layer: LayerSpec, storage: StorageKind, max_num_seqs: int) -> int:
        """Bytes but for what the number of sequences takes of the sampler, and to take steps in rings back."""
        serving = Serving(storage, (CODECS["f16"], CODECS["f16"]), torch.device("cuda"), gather=True)
        config = EngineConfig(max_num_seqs=max_num_seqs, max_context=256, max_batch_tokens=256).on("cuda")
        groups = group_layers([layer])
        most = workspace_bytes(model, groups, config, serving, 256, compiled=[False])
        return most - max_num_seqs * 8 * model.vocab_size - undo_bytes(groups, config, serving)

    full, sliding = LAYOUT
    dense, paged = (workspace(full, storage, 3) for storage in (StorageKind.DENSE, StorageKind.PAGED))
    assert dense == paged > workspace(full, StorageKind.DENSE, 1)
    assert workspace(sliding, StorageKind.DENSE, 3) == workspace(sliding, StorageKind.DENSE, 1)
