"""Quantised checkpoints on a CUDA device: weights stay in codes, and the model is the one that full weights give."""

from __future__ import annotations

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from tests.tiny_models import save_gguf, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

PROMPTS = [[5, 9, 17, 40, 41], list(range(10, 90)), [7], list(range(300, 340))]


def first_logits(path, weights):
    """Of each prompt's first token, and which routes the weights took."""
    config = EngineConfig(device="cuda", dtype="bfloat16", weights=weights, max_num_seqs=4, force=True)
    seen = {}
    loaded = load_model(plan_model(path, config), config)
    llm = LLM.over(EngineCore(loaded, config, lambda key, logits: seen.setdefault(key, logits.float().cpu().clone())))
    llm.generate(PROMPTS, SamplingParams(max_tokens=6, temperature=0.7, top_k=20, top_p=0.9, ignore_eos=True))
    return torch.stack([seen[key] for key in sorted(seen)]), loaded


@pytest.mark.parametrize("encoding", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_quantised_checkpoint_gives_the_logits_of_its_full_weights(tmp_path, encoding):
    path = save_gguf(tmp_path / "model.gguf", tiny_model("llama"), "llama", encoding)
    full, _ = first_logits(path, "full")
    narrow, loaded = first_logits(path, "auto")
    assert loaded.weight_routes["codes"] > 0
    assert (full - narrow).norm() / full.norm() < 0.03
