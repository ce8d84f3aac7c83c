"""Two hundred decode steps of every kind: the host waits for nothing but tokens, and no memory is asked for."""

from __future__ import annotations

import json

import pytest
import torch

from octavo.bench.engine_decode import load_random
from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import share_weights
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.gpu.test_decode_parity import CONFIG, GEMMA

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]

STEPS, ROWS = 200, 4
KINDS = {
    "greedy": {},
    "drawn": {"temperature": 0.8},
    "ranked": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0.8, "repetition_penalty": 1.1},
    "logprobs": {"logprobs": 2},
}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(config) -> a model of random weights on the device."""
    loaded = {}

    def get(config):
        name = config["model_type"]
        if name not in loaded:
            path = tmp_path_factory.mktemp(name)
            (path / "config.json").write_text(json.dumps(config))
            loaded[name] = load_random(path, EngineConfig(dtype="bfloat16", device="cuda"))
        return loaded[name]

    return get


def run_quietly(loaded, params, **settings):
    """(steps replayed, blocks allocated of memory held, segments asked of the device) in 200 steps of four rows."""
    given = EngineConfig(max_num_seqs=ROWS, max_context=2048, num_kv_blocks=400, device="cuda", **settings)
    core = EngineCore(share_weights(loaded, given, StorageDecision(StorageKind.PAGED, "the test's")), given)
    for i in range(ROWS):
        prompt = tuple((7 * j + i) % 1990 for j in range(200 + 5 * i))
        core.add(Request(f"{i}", prompt, SamplingParams(max_tokens=2 * STEPS, ignore_eos=True, **params), i))
    for _ in range(60):
        core.step()
    torch.cuda.synchronize()
    counts = core.runner.graphs.counts
    replayed, before = counts["replayed"], torch.cuda.memory_stats()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(STEPS):
            assert len(core.step()) == ROWS
    finally:
        torch.cuda.set_sync_debug_mode("default")
    after = torch.cuda.memory_stats()
    return counts["replayed"] - replayed, *(
        after[name] - before[name] for name in ("allocation.all.allocated", "segment.all.allocated")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_steps_from_graphs_wait_for_nothing_but_their_tokens(load, kind):
    replayed, allocated, segments = run_quietly(load(CONFIG), KINDS[kind])
    assert replayed == STEPS
    assert segments == 0
    # Of the memory that the process holds; steps of these two kinds end outside of their graphs.
    assert allocated == 0 or kind in ("penalised", "logprobs")


@pytest.mark.parametrize("kv_dtype", ["auto", "q8_0", "q4_0"])
def test_windows_and_codes_cost_no_waiting_and_no_memory(load, kv_dtype):
    assert run_quietly(load(GEMMA), {}, kv_dtype=kv_dtype) == (STEPS, 0, 0)


def test_steps_launched_one_by_one_wait_for_nothing_and_ask_the_device_for_no_memory(load):
    replayed, _, segments = run_quietly(load(CONFIG), {}, cuda_graphs=False)
    assert (replayed, segments) == (0, 0)


def test_prompts_beside_answers_are_launched_without_waiting_for_the_step_before(load):
    given = EngineConfig(
        max_num_seqs=ROWS, max_context=2048, num_kv_blocks=400, prefill_chunk=256, prefix_cache=False, device="cuda"
    )
    core = EngineCore(share_weights(load(CONFIG), given, StorageDecision(StorageKind.PAGED, "the test's")), given)

    def answer(turn, mode):
        for i in range(2 * ROWS):  # half of them wait
            prompt = tuple((7 * j + i) % 1990 for j in range(600 + 50 * i))
            core.add(Request(f"{turn}-{i}", prompt, SamplingParams(max_tokens=6 + i, ignore_eos=True), i))
        num_ahead = steps = 0
        torch.cuda.synchronize()
        try:
            torch.cuda.set_sync_debug_mode(mode)
            while core.has_work:
                core.step()
                steps += 1
                num_ahead += core._ahead is not None
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return steps, num_ahead

    answer(0, "default")
    steps, num_ahead = answer(1, "error")
    assert steps > 12
    assert num_ahead >= steps - 2
