"""The step loop: whatever a request shares its steps with, it gets the answer it would get alone."""

from __future__ import annotations

import pytest
import torch

from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import STORAGES, Driver, Outcome, alone, prompt_of
from tests.tiny_models import FAMILIES

LENGTHS = (17, 1, 100, 5, 63, 40)
ARRIVALS = (0, 0, 2, 3, 5, 9)  # the step before which each request is added
BUSY = {"max_num_seqs": 4, "max_batch_tokens": 48, "prefill_chunk": 32}


def run_mixed(loaded, storage, params=None, **settings) -> dict[str, Outcome]:
    """Requests of different lengths, arriving at different steps, more than may run at once."""
    driver = Driver(loaded, storage, **{**BUSY, **settings})
    pending = sorted(range(len(LENGTHS)), key=ARRIVALS.__getitem__)
    step = 0
    while pending or driver.core.has_work:
        while pending and ARRIVALS[pending[0]] <= step:
            i = pending.pop(0)
            keywords = {} if params is None else {"params": params}
            driver.add(str(i), prompt_of(LENGTHS[i], i), seed=i, **keywords)
        driver.step()
        step += 1
    driver.assert_idle()
    return driver.outcomes


def assert_bitwise(got: Outcome, expected: Outcome) -> None:
    assert got.token_ids == expected.token_ids
    assert (got.text, got.finish_reason) == (expected.text, expected.finish_reason)
    for ours, theirs in zip(got.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma3", "mistral-window-5", "llama-q4_0"])
def test_a_row_of_a_mixed_batch_has_the_very_logits_of_the_same_request_alone(load, case, storage):
    loaded = load(case)
    assert loaded.plan.routes.row_invariant
    outcomes = run_mixed(loaded, storage)
    for i, length in enumerate(LENGTHS):
        expected = alone(loaded, prompt_of(length, i))
        assert len(expected.token_ids) == 12
        assert_bitwise(outcomes[str(i)], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["llama", "gemma3", "mistral-window-16"])
def test_dense_and_paged_storage_give_the_same_bits(load, case, dtype):
    loaded = load(case, dtype)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    prompt = prompt_of(50)
    dense, paged = (alone(loaded, prompt, params, storage) for storage in STORAGES)
    assert_bitwise(paged, dense)


@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_batching_does_not_change_tokens_in_float32(load, case):
    loaded = load(case, "float32")
    outcomes = run_mixed(loaded, StorageKind.PAGED)
    for i, length in enumerate(LENGTHS):
        expected = alone(loaded, prompt_of(length, i))
        assert outcomes[str(i)].token_ids == expected.token_ids
        for ours, theirs in zip(outcomes[str(i)].logits, expected.logits, strict=True):
            assert (ours - theirs).abs().max() <= 1e-4


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("case", [*FAMILIES, "gemma3-window-5", "mistral-window-5"])
def test_a_short_prompt_is_not_touched_by_a_longer_one_beside_it(load, case, storage):  # report R028
    loaded = load(case, "float32")
    short, long = prompt_of(4), prompt_of(15)
    driver = Driver(loaded, storage, max_num_seqs=2)
    driver.add("short", short)
    driver.add("long", long)
    assert len(driver.step()) == 2  # both prompts were one step
    outcomes = driver.run()
    for request_id, prompt in (("short", short), ("long", long)):
        expected = alone(loaded, prompt)
        assert outcomes[request_id].token_ids == expected.token_ids
        for ours, theirs in zip(outcomes[request_id].logits, expected.logits, strict=True):
            difference = (ours.log_softmax(0) - theirs.log_softmax(0)).abs().max()
            assert difference <= 1e-4


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("case", ["gemma3", "llama-q4_0"])
def test_prefill_in_chunks_gives_the_same_bits(load, case, storage, chunk):
    loaded = load(case)
    prompt = prompt_of(90)
    driver = Driver(loaded, storage, max_num_seqs=1, prefill_chunk=chunk, prefix_cache=False)
    driver.add("chunked", prompt)
    for _ in range((90 - 1) // chunk):
        assert driver.step() == []  # no token before the whole prompt is computed
    assert len(driver.step()) == 1
    assert_bitwise(driver.run()["chunked"], alone(loaded, prompt))


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
def test_sampling_does_not_depend_on_the_company(load, storage):
    loaded = load()
    params = SamplingParams(max_tokens=12, temperature=1.0, top_k=50, top_p=0.95, ignore_eos=True)
    outcomes = run_mixed(loaded, storage, params)
    for i, length in enumerate(LENGTHS):
        assert_bitwise(outcomes[str(i)], alone(loaded, prompt_of(length, i), params, seed=i))
    greedy = [alone(loaded, prompt_of(length, i)).token_ids for i, length in enumerate(LENGTHS)]
    assert [outcomes[str(i)].token_ids for i in range(len(LENGTHS))] != greedy


def test_choices_of_one_prompt_differ_and_repeat_with_the_seed(load):
    loaded = load()
    params = SamplingParams(max_tokens=12, temperature=1.0, ignore_eos=True)

    def choices(seed: int) -> list[list[int]]:
        driver = Driver(loaded)
        for choice in range(4):
            driver.add(str(choice), prompt_of(9), params, seed, choice)
        return [outcome.token_ids for outcome in driver.run().values()]

    first = choices(7)
    assert len({tuple(tokens) for tokens in first}) == 4
    assert choices(7) == first
    assert choices(8) != first
    assert alone(loaded, prompt_of(9), params, seed=7, choice=3).token_ids == first[3]


def test_the_packed_step_is_a_prefill_and_decodes_together(load):
    """Continuous batching: a request that arrives later joins steps in which others decode."""
    driver = Driver(load(), max_num_seqs=2, max_batch_tokens=20, prefill_chunk=16)
    driver.add("early", prompt_of(5))
    driver.step()
    driver.add("late", prompt_of(40))
    for expected in (["early"], ["early"], ["early", "late"]):  # 16, 16 and 8 tokens of the late prompt
        assert [event.delta.request_id for event in driver.step()] == expected
