"""The masked forward: it is the model where nothing is forgotten, and a shifting engine where something is."""

from __future__ import annotations

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.loaded_model import load_model, plan_model
from octavo.parity import run_parity
from octavo.parity.masked_forward import ShiftSchedule, masked_logits
from octavo.parity.shift_arm import ShiftRun
from octavo.sampling_params import SamplingParams
from tests.conftest import weights_path
from tests.engine.tiny_engines import Driver, open_model, prompt_of
from tests.tiny_models import save_hf

CASES = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "window-longer-than-kept": ("mistral", {"sliding_window": 70}),
    "gemma3": ("gemma3", {"sliding_window": 96}),
}


@pytest.fixture(scope="module", params=CASES)
def loaded(request, tmp_path_factory):
    family, overrides = CASES[request.param]
    path = tmp_path_factory.mktemp(request.param)
    save_hf(path, family, **overrides)
    return open_model(path, "float32")


def widest(loaded) -> list[int]:
    return [spec.window for spec in loaded.model.kv_layout(loaded.plan.config) if spec.window is not None]


def test_the_context_loses_half_of_what_it_may_forget_whenever_it_is_full():
    schedule = ShiftSchedule(context=80, keep=16, block_size=16)
    assert schedule.drop == 32
    offsets = schedule.offsets(72, 160).tolist()
    assert offsets == [0] * 80 + [32] * 32 + [64] * 32 + [96] * 16


def test_before_anything_is_forgotten_it_is_the_model(loaded):
    prompt, answer = prompt_of(60), SamplingParams(max_tokens=40, ignore_eos=True)
    driver = Driver(loaded)
    driver.add("a", prompt, answer)
    outcome = driver.run()["a"]
    token_ids = torch.tensor([*prompt, *outcome.token_ids[:-1]])
    offsets = ShiftSchedule(512, 16, 16).offsets(60, len(token_ids))
    logits = masked_logits(loaded, token_ids, offsets, 16, 59)
    assert (logits - torch.stack(outcome.logits)).abs().max() < 1e-4


@pytest.mark.parametrize("block_size", [16, 32])
def test_an_engine_that_shifts_gives_its_logits_and_no_other_forward_does(loaded, block_size):
    run = ShiftRun.of(prompt_of(400), 64, block_size, widest(loaded))
    schedule, first = run.schedule, len(run.prompt) - 1
    answer = run.answer(loaded, EngineConfig(block_size=block_size, threads=1), None)
    got = torch.stack(answer.logits)
    assert len(answer.token_ids) == run.num_tokens >= 64
    token_ids = torch.tensor([*run.prompt, *answer.token_ids[:-1]])
    offsets = schedule.offsets(len(run.prompt), len(token_ids))
    assert len(offsets.unique()) >= 3  # shifted twice
    reference = torch.stack(run.reference(loaded, answer.token_ids).logits)
    assert (got - reference).abs().max() < 1e-3

    def error(offsets, keep):
        return (got - masked_logits(loaded, token_ids, offsets, keep, first)).abs().max()

    assert error(torch.zeros_like(offsets), schedule.keep) > 0.05
    assert error(offsets, schedule.keep - block_size) > 0.05
    late = torch.cat((torch.zeros(1, dtype=torch.int64), offsets[:-1]))
    assert error(late, schedule.keep) > 0.05


@pytest.mark.weights
@pytest.mark.parametrize(
    "alias",
    ["smollm2", pytest.param("gemma3", marks=pytest.mark.nightly), pytest.param("qwen05", marks=pytest.mark.nightly)],
)
def test_real_models_past_their_context_give_what_the_masked_forward_does(alias):
    config = EngineConfig(device="cpu")
    loaded = load_model(plan_model(weights_path(alias), config), config)
    (arm,) = run_parity(loaded, config, arms=["context_shift"]).arms
    assert arm.equal, arm.line()
    assert arm.max_logit_diff < 0.1
