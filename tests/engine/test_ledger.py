"""The memory ledger: exact sums, and refusals with both numbers before any weight is read."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from octavo.cache.spec import LayerSpec
from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine import loaded_model
from octavo.engine.core import EngineCore
from octavo.engine.ledger import Ledger, plan_memory
from octavo.engine.loaded_model import load_model, plan_model, share_weights
from octavo.engine.resident import Resident
from octavo.engine.working_memory import Serving
from octavo.errors import CapacityError, InvalidRequest
from octavo.models.loaders import open_checkpoint
from octavo.models.registry import model_class
from octavo.models.weights import WeightSource
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS
from tests.engine.tiny_engines import CASES, STORAGES
from tests.kv_memory import held_bytes

FULL = LayerSpec("full", 4, 2, 16, 16, 0.25)
WINDOW = LayerSpec("sliding", 4, 2, 16, 16, 0.25, 16)
BYTES_PER_TOKEN = 2 * (16 + 16) * 2  # KV heads, K and V, two bytes each: of one layer
BLOCK = 16 * BYTES_PER_TOKEN


@pytest.fixture(scope="module")
def model(directory):
    return open_checkpoint(directory("llama")).config


def ledger(
    model, available: int, layout=(FULL, FULL, FULL), storage=StorageKind.PAGED, weights=1000, loading=0, **settings
) -> Ledger:
    serving = Serving(storage, (CODECS["f16"], CODECS["f16"]), torch.device("cpu"))
    config = EngineConfig(**settings)
    return plan_memory(
        model, layout, config, serving=serving, resident=Resident(weights, loading=loading), available=available
    )


def fixed(model, **settings) -> int:
    """Bytes that everything but K/V takes under these settings."""
    plan = ledger(model, 1 << 40, **settings)
    return plan.weight_bytes + plan.overhead_bytes


ONE_SHAPE = {"max_batch_tokens": 16, "prefill_chunk": 16}  # steps that take the same memory at every context


def test_every_sequence_gets_its_full_context_where_there_is_room(model):
    plan = ledger(model, 1 << 40, max_num_seqs=3, max_context=100)
    assert plan.num_blocks == (3 * 7,)  # 100 tokens touch 7 blocks
    assert plan.groups[0].bytes_per_token == 3 * BYTES_PER_TOKEN
    assert plan.kv_bytes == plan.groups[0].block_bytes == 21 * 3 * BLOCK
    assert plan.total_bytes == plan.weight_bytes + plan.workspace_bytes + plan.activation_bytes + plan.kv_bytes
    assert (plan.weight_bytes, plan.max_context, plan.context_limit, plan.max_num_seqs) == (1000, 100, 100, 3)


def test_scarce_memory_gives_the_cache_four_fifths_of_what_is_left(model):
    for blocks in (2, 5, 20):
        left = math.ceil(blocks * 3 * BLOCK / 0.8)
        plan = ledger(model, fixed(model, **ONE_SHAPE) + left, **ONE_SHAPE)
        assert plan.num_blocks == (blocks,)
        assert (plan.max_context, plan.context_limit) == (min(512, blocks * 16), 512)
        assert plan.total_bytes <= plan.available_bytes


def test_a_number_of_blocks_is_taken_exactly_or_refused_with_the_most_there_could_be(model):
    available = fixed(model, **ONE_SHAPE) + 10 * 3 * BLOCK
    assert ledger(model, available, num_kv_blocks=10, **ONE_SHAPE).num_blocks == (10,)
    with pytest.raises(CapacityError, match=r"11 K/V blocks take .* are left .* at most 10$"):
        ledger(model, available, num_kv_blocks=11, **ONE_SHAPE)


def test_windows_get_what_all_sequences_can_ever_hold_before_the_rest_is_shared_out(model):
    settings = {"max_num_seqs": 3, "prefill_chunk": 32}
    layout = (FULL, WINDOW, WINDOW)
    paged = ledger(model, 1 << 40, layout, **settings)
    # 15 + 32 positions touch at most four blocks of 16, of two layers, for each of three sequences; a quarter more of
    # these is for cached prefixes.
    assert paged.groups[1].num_blocks == 3 * 4 + 3
    assert (paged.groups[1].block_bytes, paged.groups[1].ring_bytes) == (15 * 2 * BLOCK, 0)
    dense = ledger(model, 1 << 40, layout, StorageKind.DENSE, **settings)
    assert dense.groups[1].ring_bytes == 3 * 16 * 2 * BYTES_PER_TOKEN
    assert dense.groups[1].snapshot_bytes == 16 * 2 * BYTES_PER_TOKEN  # of a quarter as many sequences, one at least
    uncached = ledger(model, 1 << 40, layout, StorageKind.DENSE, prefix_cache=False, **settings)
    assert (paged.snapshot_bytes, uncached.snapshot_bytes) == (0, 0)
    assert dense.groups[0] == paged.groups[0]


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(model):
    needed = fixed(model, weights=5 << 30, max_context=1) + 3 * BLOCK
    with pytest.raises(CapacityError, match=r"needs 5\.\d\d GiB \(weights 5\.00 GiB.* but 4\.00 GiB are free"):
        ledger(model, 4 << 30, weights=5 << 30)
    with pytest.raises(CapacityError):
        ledger(model, needed - 1, weights=5 << 30)
    assert 1 <= ledger(model, needed, weights=5 << 30).max_context <= 16


def test_too_many_sequences_are_refused_with_as_many_as_fit(model):
    available = fixed(model, max_num_seqs=4) + (1 << 20)
    with pytest.raises(CapacityError) as refused:
        ledger(model, available, max_num_seqs=1_000_000)
    found = re.search(r"; give --parallel (\d+) or less \(it is 1000000\), or take a smaller model", str(refused.value))
    assert found is not None
    most = int(found[1])
    ledger(model, available, max_num_seqs=most)
    with pytest.raises(CapacityError, match=f"give --parallel {most} or less"):
        ledger(model, available, max_num_seqs=most + 1)
    with pytest.raises(CapacityError) as refused:
        ledger(model, 2000, max_num_seqs=4)
    assert "--parallel" not in str(refused.value), "one sequence would not fit either"


def test_a_model_that_cannot_be_packed_is_refused_even_if_it_would_run_afterwards(model):
    available = fixed(model) + (1 << 20)
    assert ledger(model, available, loading=available - 1000).max_context == 512
    with pytest.raises(CapacityError, match="needs"):
        ledger(model, available, loading=available - 999)


def test_a_context_asked_for_is_refused_if_it_does_not_fit_and_shrunk_if_it_was_not_asked_for(model):
    left = math.ceil(4 * 3 * BLOCK / 0.8)
    settings = {"max_num_seqs": 1, **ONE_SHAPE}
    available = fixed(model, **settings) + left
    with pytest.raises(CapacityError, match=r"a context of 512 tokens takes .* --max-context 64 or less$"):
        ledger(model, available, max_context=512, **settings)
    assert ledger(model, available, **settings).max_context == 64


def test_blocks_for_a_model_without_unbounded_layers_are_refused_not_ignored(model):
    with pytest.raises(InvalidRequest, match=r"num kv blocks is 4.*window"):
        ledger(model, 1 << 40, (WINDOW, WINDOW), num_kv_blocks=4)


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("available", [45_000_000, 50_000_000, 1 << 26, 1 << 30])
@pytest.mark.parametrize("seqs", [1, 8])
def test_the_sum_never_exceeds_what_is_free(model, storage, available, seqs):
    plan = ledger(model, available, (FULL, WINDOW, FULL), storage, max_num_seqs=seqs, max_batch_tokens=256)
    assert 0 < plan.total_bytes <= available
    assert all(group.num_blocks >= 1 for group in plan.groups)


# -- against what is really allocated ---------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["auto", "full", "int8", "int4"])
@pytest.mark.parametrize("case", ["llama", "gemma3", "qwen2", "llama-q4_0"])
def test_weights_take_what_the_ledger_says(directory, case, weights):
    config = EngineConfig(weights=weights, dtype="bfloat16", threads=1, device="cpu")
    plan = plan_model(directory(case), config)
    source = WeightSource(plan.checkpoint, plan.routes, plan.dtype, plan.device)
    with torch.inference_mode():
        model_class(plan.config.model_type)(plan.config, source)
    # The scales that int8 keeps per row show in a matrix as narrow as these.
    tolerance = 0.02 if weights == "int8" else 0.0
    assert plan.ledger.weight_bytes == pytest.approx(source.num_bytes, rel=tolerance, abs=0)


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_the_cache_takes_what_the_ledger_says(load, case, storage):
    config = EngineConfig(max_num_seqs=3, max_context=200, threads=1)
    loaded = share_weights(load(case), config, StorageDecision(storage, "test"))
    core = EngineCore(loaded, config)
    assert core.pool.prefix.snapshot_limit_bytes == core.ledger.snapshot_bytes
    assert core.ledger.kv_bytes - core.ledger.snapshot_bytes == held_bytes(core.runner.cache)


def test_weights_shared_by_engines_are_counted_as_there_already(load):
    config = EngineConfig(max_num_seqs=1, threads=1)
    loaded = load()
    shared = share_weights(loaded, config, StorageDecision(StorageKind.DENSE, "test"))
    assert shared.model is loaded.model
    assert shared.plan.ledger.weight_bytes == loaded.plan.ledger.weight_bytes
    assert shared.plan.storage.kind is StorageKind.DENSE


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(directory, case, monkeypatch):
    monkeypatch.setattr(loaded_model, "available_memory", lambda device: 100_000)
    config = EngineConfig(threads=1, device="cpu")

    def no_reading(*args):
        raise AssertionError("weights were read")

    monkeypatch.setattr(loaded_model, "load_model", no_reading)
    monkeypatch.setattr("octavo.layers.quant_tensor.QuantTensor.dequantize", no_reading)
    with pytest.raises(CapacityError, match=r"needs \d+\.\d MiB .* but 0\.1 MiB are free"):
        plan_model(directory(case), config)


def test_planning_reads_no_weights_and_loading_tells_its_progress(directory):
    config = EngineConfig(threads=1, device="cpu")
    plan = plan_model(directory("llama"), config)
    seen: list[tuple[int, int]] = []
    load_model(plan, config, lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (plan.checkpoint.num_bytes, plan.checkpoint.num_bytes)


def test_a_context_beyond_the_models_is_refused(directory):
    with pytest.raises(InvalidRequest, match=r"513.*512"):
        plan_model(directory("llama"), EngineConfig(max_context=513))
    assert plan_model(directory("llama"), EngineConfig(max_context=512)).ledger.max_context == 512


def test_one_sequence_is_dense_and_several_are_paged_unless_asked(directory):
    path = directory("qwen3")  # of which nothing was measured
    assert plan_model(path, EngineConfig(max_num_seqs=1)).storage.kind is StorageKind.DENSE
    assert plan_model(path, EngineConfig(max_num_seqs=2)).storage.kind is StorageKind.PAGED
    assert plan_model(path, EngineConfig(max_num_seqs=2), may_run_several=False).storage.kind is StorageKind.DENSE
    for choice in STORAGES:
        config = replace(EngineConfig(max_num_seqs=1), storage=choice.value)
        assert plan_model(path, config).storage.kind is choice
