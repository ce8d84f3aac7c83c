"""Decode steps from CUDA graphs: the bits of steps launched one by one, no waiting, and no memory taken."""

from __future__ import annotations

import os

import pytest
import torch

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model, share_weights
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.tiny_models import FAMILIES, save_hf, save_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(family, exact=False) -> a tiny model on the device."""
    loaded = {}

    def get(family, *, exact=False):
        if (family, exact) not in loaded:
            path = tmp_path_factory.mktemp(family)
            save_hf(path, family, max_position_embeddings=1024)
            save_tokenizer(path)
            config = EngineConfig(dtype="bfloat16", device="cuda", exact=exact)
            loaded[family, exact] = load_model(plan_model(path, config), config)
        return loaded[family, exact]

    return get


def engine(loaded, on_logits=None, **settings):
    config = EngineConfig(max_context=600, device="cuda", **settings)
    shared = share_weights(loaded, config, StorageDecision(StorageKind.PAGED, "the test asks for it"))
    return EngineCore(shared, config, on_logits)


def add(core, name, length, count, seed=0, **settings):
    prompt = tuple((7 * i + length) % 370 + 3 for i in range(length))
    core.add(Request(name, prompt, SamplingParams(max_tokens=count, ignore_eos=True, **settings), seed))


def evolve(core, **settings):
    """Tokens of requests that come, grow over blocks' ends, are preempted, aborted and end at different times."""
    tokens: dict[str, list[int]] = {}

    def steps(count):
        while core.has_work and count:
            count -= 1
            for event in core.step():
                assert event.error is None, event.error
                tokens.setdefault(event.delta.request_id, []).extend(event.delta.token_ids)

    add(core, "a", 30, 150, **settings)
    add(core, "b", 3, 40, **settings)
    steps(30)
    add(core, "c", 300, 60, 3, **settings)
    add(core, "d", 9, 100, 4, **settings)
    add(core, "e", 61, 100, 5, **settings)
    steps(30)
    core.abort("d")
    core.preempt("e")
    steps(10_000)
    tokens.pop("d", None)
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kv_dtype", ["auto", "q8_0"])
def test_a_graph_gives_the_bits_of_steps_launched_one_by_one_over_an_evolving_batch(load, family, kv_dtype):
    seen = []

    def run(**settings):
        logits = {}

        def observe(request_id, row):
            logits.setdefault(request_id, []).append(row.cpu().clone())

        core = engine(load(family), observe, max_num_seqs=5, kv_dtype=kv_dtype, **settings)
        seen.append(core.runner.graphs.counts)
        return evolve(core), logits

    tokens, logits = run()
    expected_tokens, expected = run(cuda_graphs=False)
    assert tokens == expected_tokens
    for name, rows in logits.items():
        for got, want in zip(rows, expected[name], strict=True):
            assert torch.equal(got, want)
    replays, without = seen
    assert replays["replayed"] > 100 and replays["recorded"] > 2
    assert without["replayed"] == 0 < without["graphs are off"]


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "top_k": 40}, {"logprobs": 2}], ids=str)
def test_looking_ahead_with_graphs_gives_the_tokens_of_steps_launched_one_by_one(load, settings):
    # Looking ahead, a preempted sequence comes back among other rows: only exact kernels give the same bits there.
    loaded = load("llama", exact=True)
    got = engine(loaded, max_num_seqs=5, exact=True)
    assert got._looks_ahead
    expected = engine(loaded, max_num_seqs=5, exact=True, cuda_graphs=False, decode_lookahead=False)
    assert evolve(got, **settings) == evolve(expected, **settings)
    assert got.runner.graphs.counts["replayed"] > 100


def test_a_pool_too_small_for_all_is_shared_as_without_graphs(load):
    loaded = load("llama")

    def run(**settings):
        core = engine(loaded, max_num_seqs=4, num_kv_blocks=20, **settings)
        for i in range(6):
            add(core, f"{i}", 20 + 17 * i, 90)
        tokens = {}
        while core.has_work:
            for event in core.step():
                tokens.setdefault(event.delta.request_id, []).extend(event.delta.token_ids)
        assert core.preemptions > 0
        return tokens

    # Who gives way when differs with lookahead, and with it the batches; the engine's own way is the same in both.
    assert run() == run(cuda_graphs=False)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_two_hundred_steps_wait_for_nothing_but_their_tokens_and_take_no_memory(load):
    core = engine(load("qwen3"), max_num_seqs=4)
    for i in range(4):
        add(core, f"{i}", 200 + 5 * i, 300)
    for _ in range(40):
        core.step()
    torch.cuda.synchronize()
    counts = core.runner.graphs.counts
    before, replayed = torch.cuda.memory_stats()["allocation.all.allocated"], counts["replayed"]
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(200):
            assert len(core.step()) == 4
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert counts["replayed"] == replayed + 200
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.skipif(
    os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1", reason="other workers take the device's memory meanwhile"
)
def test_graphs_take_no_more_memory_than_the_ledger_says(load):
    core = engine(load("llama"), max_num_seqs=16)
    for i in range(16):
        add(core, f"{i}", 20 + 3 * i, 10 + 8 * i)  # one after another ends: every size is recorded
    for _ in range(3):
        core.step()
    torch.cuda.synchronize()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    while core.has_work:
        core.step()
    torch.cuda.synchronize()
    taken = free - torch.cuda.mem_get_info()[0]
    assert core.runner.graphs.counts["recorded"] >= 5
    assert taken <= core.ledger.graph_bytes, (taken, torch.cuda.memory_reserved() - reserved)
