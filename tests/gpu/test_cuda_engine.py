"""The engine on a CUDA device: the same code, held against the CPU and against itself."""

from __future__ import annotations

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.llm import LLM
from octavo.parity import run_parity
from octavo.sampling_params import SamplingParams
from tests.tiny_models import FAMILIES, save_hf, save_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

PROMPTS = [[5, 9, 17, 40, 41], list(range(10, 90)), [7], list(range(300, 340))]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save_hf(path, request.param, max_position_embeddings=512)
    save_tokenizer(path)
    return path


def run(path, *, num_tokens=24, **settings):
    """Tokens and logits of the prompts, batched."""
    config = EngineConfig(max_num_seqs=4, **settings)
    seen = {}

    def observe(request_id, logits):
        seen.setdefault(int(request_id.partition("-")[0]), []).append(logits.float().cpu().clone())

    llm = LLM.over(EngineCore(load_model(plan_model(path, config), config), config, observe))
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=num_tokens, ignore_eos=True))
    return [list(output.outputs[0].token_ids) for output in outputs], [
        torch.stack(seen[i]) for i in range(len(PROMPTS))
    ]


@pytest.mark.parametrize("storage", ["dense", "paged"])
def test_float32_logits_equal_those_of_the_cpu(checkpoint, storage):
    tokens, logits = run(checkpoint, device="cuda", dtype="float32", storage=storage)
    expected_tokens, expected = run(checkpoint, device="cpu", dtype="float32", storage=storage)
    assert tokens == expected_tokens
    for got, want in zip(logits, expected, strict=True):
        assert (got - want).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_logits_stay_near_float32(checkpoint, dtype):
    _, exact = run(checkpoint, device="cuda", dtype="float32", num_tokens=1)
    _, rounded = run(checkpoint, device="cuda", dtype=dtype, num_tokens=1)
    for got, want in zip(rounded, exact, strict=True):
        assert (got - want).abs().max() < 0.15 * want.std() + 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_arm_of_a_parity_run_agrees(checkpoint, dtype):
    config = EngineConfig(device="cuda", dtype=dtype)
    loaded = load_model(plan_model(checkpoint, config), config)
    report = run_parity(loaded, config)
    assert report.equal, [arm.line() for arm in report.arms if not arm.equal]


def test_auto_takes_the_device_and_bfloat16(checkpoint):
    plan = plan_model(checkpoint, EngineConfig())
    assert (plan.device.type, plan.dtype) == ("cuda", torch.bfloat16)
