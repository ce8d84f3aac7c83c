"""`--exact` on a CUDA device: a token's bits are its own, whatever is computed beside it and however it got there."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model, share_weights
from octavo.errors import InvalidRequest
from octavo.parity import run_parity
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.tiny_models import save_gguf, save_hf, save_tokenizer, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

PAGED = StorageDecision(StorageKind.PAGED, "the test asks for it")


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3", "llama-Q4_0", "llama-Q4_1"])
def exact(request, tmp_path_factory):
    """A tiny exact model on the device."""
    family, _, encoding = request.param.partition("-")
    path = tmp_path_factory.mktemp(request.param)
    if encoding:
        path = save_gguf(path / "model.gguf", tiny_model(family, max_position_embeddings=1024), family, encoding)
    else:
        save_hf(path, family, max_position_embeddings=1024)
        save_tokenizer(path)
    config = EngineConfig(dtype="bfloat16", device="cuda", exact=True, force=True)
    loaded = load_model(plan_model(path, config), config)
    assert loaded.plan.exact.holds
    return loaded


PROMPTS = [tuple((7 * i * i + 11 * length) % 370 + 3 for i in range(length)) for length in (400, 3, 61, 290, 17, 130)]


def answers(loaded, prompts, count=14, *, storage=PAGED, params=None, **settings):
    """Per prompt, tokens and the logits that each was drawn from."""
    config = EngineConfig(
        **{"max_context": 600, "device": "cuda", "exact": True, "max_num_seqs": len(prompts), **settings}
    )
    logits = [[] for _ in prompts]
    core = EngineCore(
        share_weights(loaded, config, storage),
        config,
        lambda name, row: logits[int(name)].append(row.cpu().clone()),
    )
    tokens = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        core.add(Request(f"{i}", prompt, params or SamplingParams(max_tokens=count, ignore_eos=True), 5))
    while core.has_work:
        for event in core.step():
            assert event.error is None, event.error
            tokens[int(event.delta.request_id)].extend(event.delta.token_ids)
    return tokens, [torch.stack(rows) for rows in logits], core


def same(got, want):
    return got[0] == want[0] and all(torch.equal(a, b) for a, b in zip(got[1], want[1], strict=True))


@pytest.fixture(scope="module")
def alone(exact):
    """Each prompt by itself, prefilled whole."""
    found = [answers(exact, [prompt], prefix_cache=False) for prompt in PROMPTS]
    return [tokens[0] for tokens, _, _ in found], [logits[0] for _, logits, _ in found]


def test_batches_chunks_and_cached_beginnings_change_no_bit(exact, alone):
    assert same(answers(exact, PROMPTS), alone)
    assert same(answers(exact, PROMPTS, prefill_chunk=256, max_batch_tokens=300), alone)
    assert same(answers(exact, PROMPTS, prefill_chunk=37, max_batch_tokens=90), alone)
    tokens, logits, _ = answers(exact, PROMPTS * 11, max_num_seqs=64)
    assert same((tokens[-6:], logits[-6:]), alone)
    three = answers(exact, PROMPTS[1:4], cuda_graphs=False)
    assert same(three, (alone[0][1:4], alone[1][1:4]))


def test_steps_launched_one_by_one_have_the_bits_of_graphs(exact, alone):
    *with_graphs, core = answers(exact, PROMPTS, decode_lookahead=False)
    assert core.runner.graphs.counts["replayed"] > 5
    assert same(with_graphs, alone)
    *without, core = answers(exact, PROMPTS, cuda_graphs=False)
    assert core.runner.graphs.counts["replayed"] == 0
    assert same(without, alone)


def test_generated_tokens_have_the_logits_that_they_have_in_a_prompt(exact, alone):
    for i, prompt in enumerate(PROMPTS):
        tokens, logits = alone[0][i], alone[1][i]
        for given in (1, 6, 13):
            forced = answers(exact, [prompt + tuple(tokens[:given])], count=1)
            assert torch.equal(forced[1][0][0], logits[given])


def test_dense_sequences_have_the_bits_of_paged_ones_or_are_refused(exact, alone):
    dense = StorageDecision(StorageKind.DENSE, "the test asks for it")
    if all(spec.window is None for spec in exact.model.kv_layout(exact.plan.config)):
        assert same(answers(exact, PROMPTS, storage=dense), alone)
        return
    with pytest.raises(InvalidRequest, match="rings, which no exact kernel reads; use --storage paged or --no-exact"):
        answers(exact, PROMPTS, storage=dense)


def test_sampled_tokens_are_the_same_alone_and_batched(exact):
    params = SamplingParams(max_tokens=20, temperature=0.9, top_k=40, top_p=0.95, seed=3, ignore_eos=True)
    batch, _, _ = answers(exact, PROMPTS, params=params)
    for prompt, want in zip(PROMPTS, batch, strict=True):
        assert answers(exact, [prompt], params=params)[0][0] == want


@pytest.mark.parametrize("kv_dtype", ["q8_0", "q4_0", "k=q8_0,v=q4_0"])
def test_quantised_keys_and_values_are_exact_too(exact, kv_dtype):
    want = [answers(exact, [prompt], kv_dtype=kv_dtype) for prompt in PROMPTS[:3]]
    got = answers(exact, PROMPTS[:3], kv_dtype=kv_dtype, prefill_chunk=37)
    assert same(got, ([each[0][0] for each in want], [each[1][0] for each in want]))


def test_parity_demands_equal_bits_and_gets_them(exact):
    arms = ["paged_b1", "dense_b1", "batch4_paged_row3", "prefill_chunk_7", "graph", "cached_prefix", "preempted"]
    config = EngineConfig(dtype="bfloat16", device="cuda", exact=True, force=True)
    if any(spec.window for spec in exact.model.kv_layout(exact.plan.config)):
        arms.remove("dense_b1")
    else:
        arms += ["imported_snapshot", "cached_prefix_dense", "codec_q8_0"]
    report = run_parity(exact, config, num_tokens=24, arms=arms)
    assert report.contract == "bitwise"
    assert [(arm.name, arm.problem) for arm in report.arms if not arm.equal] == []
    assert {arm.name for arm in report.arms} == set(arms)
    assert all(arm.max_logit_diff == 0.0 for arm in report.arms)
