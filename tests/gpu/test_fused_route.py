"""The engine on a CUDA device by the fused route, held against gathering, which its kill switch asks for."""

from __future__ import annotations

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from octavo.storage.fused_attention import FusedAttention
from tests.tiny_models import FAMILIES, save_hf, save_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

PROMPTS = [[5, 9, 17, 40, 41], list(range(10, 290)), [7], list(range(300, 340))]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save_hf(path, request.param, max_position_embeddings=512)
    save_tokenizer(path)
    return path


def run(path, **settings):
    """Logits of the prompts' greedy tokens, batched, and the routes taken."""
    config = EngineConfig(max_num_seqs=4, device="cuda", storage="paged", **settings)
    seen = {}

    def observe(request_id, logits):
        seen.setdefault(int(request_id.partition("-")[0]), []).append(logits.float().cpu().clone())

    core = EngineCore(load_model(plan_model(path, config), config), config, observe)
    outputs = LLM.over(core).generate(PROMPTS, SamplingParams(max_tokens=24, ignore_eos=True))
    return [list(out.outputs[0].token_ids) for out in outputs], [torch.stack(seen[i]) for i in range(len(PROMPTS))]


@pytest.mark.parametrize("kv_dtype", ["auto", "q8_0"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_fused_steps_give_the_logits_of_gathered_ones(checkpoint, dtype, kv_dtype, monkeypatch):
    calls = []
    attend = FusedAttention._attend

    def counted(self, plan, *rest):
        calls.extend(type(kernel).__name__ for kernel in plan.kernels)
        return attend(self, plan, *rest)

    monkeypatch.setattr(FusedAttention, "_attend", counted)
    tokens, logits = run(checkpoint, dtype=dtype, kv_dtype=kv_dtype)
    used = set(calls)
    calls.clear()
    monkeypatch.setenv("OCTAVO_PAGED_ATTENTION_NATIVE", "0")
    expected_tokens, expected = run(checkpoint, dtype=dtype, kv_dtype=kv_dtype)
    assert not calls
    for mine, theirs, got, want in zip(tokens, expected_tokens, logits, expected, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), len(mine) - 1) + 1
        assert (got[:same] - want[:same]).abs().max() < 0.05 * want.std() + 0.02
        if same < len(mine):  # a near tie may fall the other way
            best = want[same - 1].topk(2).values
            assert best[0] - best[1] < 0.25
    assert used == {"PagedDecode", "PagedPrefill"}


@pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation:UserWarning")
def test_the_deterministic_switch_gives_the_same_bits_twice(checkpoint, monkeypatch):
    monkeypatch.setenv("OCTAVO_SDPA_DETERMINISTIC", "1")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        (tokens, logits), (again, repeated) = (run(checkpoint, dtype="bfloat16") for _ in range(2))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert tokens == again
    for one, other in zip(logits, repeated, strict=True):
        assert torch.equal(one, other)
