"""Sliding windows and long contexts through the whole engine, against transformers."""

from __future__ import annotations

import pytest
import torch
import transformers

from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import STORAGES, Driver, open_model, prompt_of
from tests.tiny_models import save_hf

CASES = {"mistral-window-5": 5, "mistral-window-16": 16, "gemma3-window-5": 5, "gemma3": 16}
NUM_NEW = 40  # well past each window


@pytest.fixture(scope="module")
def original(directory):
    """The model of a case as transformers runs it, in float32."""
    models = {}

    def of(case):
        if case not in models:
            models[case] = transformers.AutoModelForCausalLM.from_pretrained(
                directory(case), dtype=torch.float32, attn_implementation="eager"
            ).eval()
        return models[case]

    return of


@torch.no_grad()
def next_token_logits(model, prompt, outcome):
    """What `model` says before each token that the engine chose, without any cache."""
    ids = [*prompt, *outcome.token_ids]
    return model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]


@pytest.mark.parametrize("chunk", [3, 512])
@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("case", CASES)
def test_each_query_sees_its_own_last_window_of_keys(load, original, case, storage, chunk):  # report R029
    window = CASES[case]
    lengths = (window - 1, window, window + 1, 2 * window, 20)
    driver = Driver(load(case, "float32"), storage, max_num_seqs=3, prefill_chunk=chunk)
    for length in lengths:
        driver.add(str(length), prompt_of(length), SamplingParams(max_tokens=NUM_NEW, ignore_eos=True))
    outcomes = driver.run()
    driver.assert_idle()
    for length in lengths:
        outcome = outcomes[str(length)]
        expected = next_token_logits(original(case), prompt_of(length), outcome)
        assert expected.std() >= 0.9
        assert (torch.stack(outcome.logits) - expected).abs().max() <= 1e-4


def test_paged_windows_hold_no_more_blocks_than_they_need(load):
    driver = Driver(load("mistral-window-5", "float32"), StorageKind.PAGED, max_num_seqs=1, prefill_chunk=16)
    driver.add("long", prompt_of(100), SamplingParams(max_tokens=200, ignore_eos=True))
    held = []
    while driver.core.has_work:
        driver.step()
        held.append(driver.at_start[0] - driver.core.pool.num_free_blocks[0])
    assert 1 <= max(held) <= 3  # 4 + 16 tokens touch at most three blocks of 16


@pytest.mark.parametrize(
    "storage", [pytest.param(StorageKind.DENSE, marks=pytest.mark.nightly), StorageKind.PAGED], ids=lambda s: s.value
)
def test_positions_beyond_two_to_the_sixteenth_are_right(tmp_path, storage):  # report R053
    """One windowed layer sees the last 16 tokens only, so a short sequence says what a long one must give."""
    length = (1 << 16) + 41
    theirs = save_hf(tmp_path, "mistral", num_hidden_layers=1, sliding_window=16, max_position_embeddings=70_000)
    driver = Driver(open_model(tmp_path, "float32"), storage, max_context=70_000, max_num_seqs=1)
    prompt = prompt_of(length)
    driver.add("long", prompt, SamplingParams(max_tokens=20, ignore_eos=True))
    outcome = driver.run()["long"]
    expected = next_token_logits(theirs, prompt[-40:], outcome)
    # Rotary angles of 65,000 radians are exact to 0.004 in float32.
    assert (torch.stack(outcome.logits) - expected).abs().max() <= 0.05
    driver.assert_idle()
