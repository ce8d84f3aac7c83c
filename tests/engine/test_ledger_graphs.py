"""What the ledger sets aside for decode steps that a GPU records."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo.cache.spec import LayerSpec
from octavo.config import EngineConfig
from octavo.engine.ledger import Ledger, plan_memory
from octavo.engine.resident import Resident
from octavo.engine.working_memory import Serving
from octavo.models.loaders import open_checkpoint
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS

LAYOUT = (LayerSpec("full", 4, 2, 16, 16, 0.25), LayerSpec("sliding", 4, 2, 16, 16, 0.25, 32))
SPARE_BLOCKS = 16 * 2 * (16 + 16) * 2 * len(LAYOUT)


@pytest.fixture(scope="module")
def model(directory):
    return open_checkpoint(directory("llama")).config


def plan(model, device: str, **settings) -> Ledger:
    serving = Serving(StorageKind.PAGED, (CODECS["f16"], CODECS["f16"]), torch.device(device))
    config = EngineConfig(**settings)
    return plan_memory(model, LAYOUT, config, serving=serving, resident=Resident(1000), available=4 << 30)


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
