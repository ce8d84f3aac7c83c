"""Real checkpoints against the answers that an independent engine recorded on the same weights."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.engine.model_runner import ModelRunner
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StepBatch, StorageKind
from tests.conftest import weights_path
from tests.schedules import HandScheduler

pytestmark = pytest.mark.weights

ORACLE = Path(__file__).parent.parent / "oracle"
ALIASES = ("smollm2", "gemma3", "qwen05")
# Float32 is slow, and what a family has of its own shows in tiny models.
SLOW_IN_FLOAT32 = tuple(pytest.param(alias, marks=pytest.mark.nightly) for alias in ("gemma3", "qwen05"))
# Storages give the same bits: `octavo parity`. So recorded answers are compared in one of them by day, and in one mode:
# float32's of the model that the test above does not compare with them.
BY_DAY = [
    ("smollm2", "quant", StorageKind.DENSE),
    ("gemma3", "f32", StorageKind.PAGED),
    ("qwen05", "f32", StorageKind.PAGED),
]
COMPARED = [
    pytest.param(*each, marks=() if each in BY_DAY else pytest.mark.nightly, id=f"{each[0]}-{each[1]}-{each[2].value}")
    for each in product(ALIASES, ("f32", "quant"), (StorageKind.PAGED, StorageKind.DENSE))
]
TOP5_TOLERANCE = {"smollm2": 1e-3, "qwen05": 1e-3, "gemma3": 3e-2}
MARGIN = 0.5
NUM_TOKENS = 32


def cases(alias, mode):
    return json.loads((ORACLE / f"{alias}.{mode}.json").read_text())["cases"]


def open_model(alias, dtype, **settings):
    config = EngineConfig(dtype=dtype, device="cpu", max_context=1024, max_num_seqs=5, **settings)
    return load_model(plan_model(weights_path(alias), config), config), config


@pytest.fixture(scope="module")
def default_dtype():
    """`default_dtype(alias)`: a model in the dtype that it gets unasked. The last one is kept."""
    opened = {}

    def of(alias):
        if alias not in opened:
            opened.clear()
            opened[alias], _ = open_model(alias, "auto")
        return opened[alias]

    return of


@pytest.mark.parametrize("alias", ["smollm2", *SLOW_IN_FLOAT32])
def test_float32_gives_the_recorded_tokens_and_logits(alias):
    loaded, config = open_model(alias, "float32")
    seen = {}

    def observe(request_id, logits):
        seen.setdefault(int(request_id.partition("-")[0]), []).append(logits.clone())

    llm = LLM.over(EngineCore(loaded, config, observe))
    recorded = cases(alias, "f32")
    prompts = [llm.encode(case["prompt"], parse_special=case["parse_special"]) for case in recorded]
    for case, prompt in zip(recorded, prompts, strict=True):
        assert list(prompt) == case["prompt_token_ids"], case["name"]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True))
    for i, (case, output) in enumerate(zip(recorded, outputs, strict=True)):
        assert list(output.outputs[0].token_ids) == case["output_token_ids"], case["name"]
        for step, top5 in enumerate(case["top5_logits"]):
            for token_id, logit in top5:
                assert seen[i][step][token_id].item() == pytest.approx(logit, abs=TOP5_TOLERANCE[alias])


@pytest.mark.parametrize(("alias", "mode", "storage"), COMPARED)
def test_the_default_dtype_agrees_wherever_the_recorded_margin_is_clear(default_dtype, alias, mode, storage):
    assert_agrees_where_clear(default_dtype(alias), alias, mode, storage)


@pytest.mark.nightly
@pytest.mark.parametrize("route", ["full", "int4", "int8", "no exact"])
@pytest.mark.parametrize("alias", ALIASES)
def test_every_other_route_of_the_weights_agrees_wherever_the_recorded_margin_is_clear(alias, route):
    choice = {"exact": False} if route == "no exact" else {"weights": route}
    loaded, _ = open_model(alias, "bfloat16", **choice)
    for mode in ("quant", "f32"):
        assert_agrees_where_clear(loaded, alias, mode, StorageKind.PAGED)


def assert_agrees_where_clear(loaded, alias, mode, storage):
    """Teacher-forced: each step continues the recorded answer, so one near-tie does not hide the rest."""
    recorded = cases(alias, mode)
    layout = loaded.model.kv_layout(loaded.plan.config)
    scheduler = HandScheduler(layout, storage, max_seqs=len(recorded), max_context=1024, codecs=codec_names(loaded))
    runner = ModelRunner(loaded, scheduler.cache)
    prompts = [scheduler.row(slot, case["prompt_token_ids"]) for slot, case in enumerate(recorded)]
    logits = runner.execute(StepBatch(tuple(prompts)))
    num_clear = 0
    for step in range(NUM_TOKENS):
        for slot, case in enumerate(recorded):
            if case["margins"][step] >= MARGIN:
                num_clear += 1
                assert logits[slot].argmax().item() == case["output_token_ids"][step], f"{case['name']} step {step}"
        rows = [scheduler.row(slot, [case["output_token_ids"][step]]) for slot, case in enumerate(recorded)]
        logits = runner.execute(StepBatch(tuple(rows)))
    assert num_clear > len(recorded) * NUM_TOKENS // 2


def codec_names(loaded):
    k, v = loaded.plan.codecs
    return k.name, v.name


@pytest.mark.parametrize("alias", ALIASES)
def test_control_tokens_in_a_prompt_are_text_unless_asked_for(alias):
    tokenizer = plan_model(weights_path(alias), EngineConfig(device="cpu")).checkpoint.tokenizer()
    control = next(
        text for text in ("<|im_end|>", "<end_of_turn>") if len(tokenizer.encode(text, parse_special=True)) <= 2
    )
    plain = tokenizer.encode(control)
    assert len(plain) > 2
    assert tokenizer.decode(plain, skip_special_tokens=False).endswith(control)
