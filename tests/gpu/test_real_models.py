"""Real checkpoints on a CUDA device: four rows, prompts up to the model's limit, fused held against gathering."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.storage.route import RouteSwitches
from tests.conftest import weights_path

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.weights,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

NEW_TOKENS = 64
# SmolLM2 was made for 8,192 tokens, the others for more.
PROMPTS = {"smollm2": (7900, 4100, 700, 25), "gemma3": (12_000, 8200, 700, 25), "qwen05": (12_000, 8200, 700, 25)}
TEXT = Path(__file__).parent.parent.parent / "docs"


def config_of(alias, dtype):
    return EngineConfig(
        device="cuda",
        dtype=dtype,
        # K/V in float16 beside float32: what differs between the routes is attention's own rounding.
        kv_dtype="f16" if dtype == "float32" else "auto",
        storage="paged",
        max_num_seqs=4,
        max_context=max(PROMPTS[alias]) + NEW_TOKENS,
        num_kv_blocks=2500,
    )


@pytest.fixture(scope="module")
def load():
    """load(alias, dtype) -> the model on the device, and its prompts: real text, each from another place on."""
    loaded = {}

    def get(alias, dtype):
        path = weights_path(alias)
        if (alias, dtype) not in loaded:
            loaded.clear()  # one at a time
            config = config_of(alias, dtype)
            loaded[alias, dtype] = load_model(plan_model(path, config), config)
        model = loaded[alias, dtype]
        text = "\n".join(path.read_text("utf-8") for path in sorted(TEXT.glob("*.md")))
        ids = model.tokenizer.encode(text)
        return model, [tuple(ids[1000 * i : 1000 * i + length]) for i, length in enumerate(PROMPTS[alias])]

    return get


def answer(model, prompts, config, **switches):
    """Greedy tokens of all prompts, batched, the logits that they were taken from, and the routes."""
    tokens, logits = {}, {}

    def observe(request_id, row):
        logits.setdefault(request_id, []).append(row.float().cpu().clone())

    core = EngineCore(model, config, observe, switches=RouteSwitches(**switches))
    for i, prompt in enumerate(prompts):
        core.add(Request(f"{i}", prompt, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True), 0))
    while core.has_work:
        for event in core.step():
            assert event.error is None, event.error
            tokens.setdefault(event.delta.request_id, []).extend(event.delta.token_ids)
    return tokens, {name: torch.stack(rows) for name, rows in logits.items()}, core.runner.cache.routes.by_route()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("alias", PROMPTS)
def test_a_model_answers_long_prompts_as_by_gathering(load, alias, dtype):
    model, prompts = load(alias, dtype)
    assert [len(prompt) for prompt in prompts] == list(PROMPTS[alias])
    tokens, logits, routes = answer(model, prompts, config_of(alias, dtype))
    expected_tokens, expected, gathered = answer(model, prompts, config_of(alias, dtype), native=False)
    assert gathered.keys() == {"gather"}
    assert {"fused_decode", "varlen_prefill"} <= routes.keys() and "gather" not in routes
    for name, theirs in expected_tokens.items():
        mine = tokens[name]
        assert len(mine) == len(theirs) == NEW_TOKENS
        same = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), NEW_TOKENS - 1) + 1
        difference = float((logits[name][:same] - expected[name][:same]).abs().max())
        print(f"{alias} {dtype}, prompt of {len(prompts[int(name)])}: {same} equal, logits within {difference:.4f}")
        assert difference < (0.05 if dtype == "float32" else 1.0)
        if same < NEW_TOKENS:  # a near tie may fall the other way
            best = expected[name][same - 1].topk(2).values
            assert best[0] - best[1] < 2 * difference
            assert dtype != "float32" or best[0] - best[1] < 0.02
