"""Reports of kind d, blocks and prefix cache, replayed through the engine: the same bits with and without sharing."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace

import pytest
import torch

from octavo.cache import prefix_cache
from octavo.cache.prefix_tree import PrefixTree
from octavo.llm import LLM
from octavo.outputs import TokenLogprobs
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.combinations import by_day
from tests.engine.test_no_leaks import poison
from tests.engine.tiny_engines import GREEDY_12, Driver, Outcome, alone, prompt_of

BLOCK = 16
FEW = SamplingParams(max_tokens=4, ignore_eos=True)
CASES = ["llama", "gemma3", "mistral-window-5"]
every_case = pytest.mark.parametrize("case", CASES)
both_storages = pytest.mark.parametrize("storage", list(StorageKind), ids=lambda kind: kind.value)


def as_id(value: object) -> str:
    return value.value if isinstance(value, StorageKind) else str(value)


class DeviceLost(BaseException):
    """What a step fails with here: nothing that a request could be at fault for."""


def assert_same_bits(got: Outcome, expected: Outcome) -> None:
    assert got.token_ids == expected.token_ids and got.token_ids
    assert torch.equal(torch.stack(got.logits), torch.stack(expected.logits))
    assert (got.text, got.finish_reason) == (expected.text, expected.finish_reason)


def shareable(case: str, storage: StorageKind, num_tokens: int) -> int:
    """Tokens that a prompt may begin with of an equal one: whole blocks short of the last token. Where storage keeps
    rings these come with a snapshot, which prompts of less than four blocks are not worth.
    """
    whole = (num_tokens - 1) // BLOCK * BLOCK
    return 0 if storage is StorageKind.DENSE and case != "llama" and whole < 4 * BLOCK else whole


def count_tokens(driver: Driver) -> list[int]:
    """A list that gets what the model computes, in tokens, of each step from here on."""
    counted: list[int] = []
    forward = driver.core.runner.forward

    def counting(batch):
        counted.append(sum(row.num_tokens for row in batch.rows))
        return forward(batch)

    driver.core.runner.forward = counting
    return counted


# -- R020: the whole prompt is in the cache -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "case", "storage"),
    by_day([*(k * BLOCK + d for k in (1, 2, 3) for d in (-1, 0, 1)), 6 * BLOCK], CASES, list(StorageKind)),
    ids=as_id,
)
def test_r020_a_prompt_sent_again_leaves_a_token_to_compute_and_gets_the_same_answer(load, case, storage, length):
    loaded, prompt = load(case), prompt_of(length)
    expected = alone(loaded, prompt, FEW)
    driver = Driver(loaded, storage)
    computed = count_tokens(driver)
    for name in ("first", "second", "third"):
        computed.clear()
        before = driver.core.pool.prefix.counters.hit_tokens
        driver.add(name, prompt, FEW)
        assert_same_bits(driver.run()[name], expected)
        cached = driver.core.pool.prefix.counters.hit_tokens - before
        assert cached == (0 if name == "first" else shareable(case, storage, length))
        assert sum(computed) == length - cached + len(expected.token_ids) - 1
    driver.assert_idle()


@every_case
@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 4])
def test_r020_a_prompt_that_is_an_earlier_one_and_its_answer_goes_on_as_if_it_were_new(load, case, length):
    loaded, prompt = load(case), prompt_of(length)
    driver = Driver(loaded)
    driver.add("first", prompt)
    longer = (*prompt, *driver.run()["first"].token_ids)
    for name in ("second", "third"):
        before = driver.core.pool.prefix.counters.hit_tokens
        driver.add(name, longer)
        assert_same_bits(driver.run()[name], alone(loaded, longer))
        assert driver.core.pool.prefix.counters.hit_tokens - before == (len(longer) - 1) // BLOCK * BLOCK
    driver.assert_idle()


def test_r020_the_same_text_again_has_the_same_answer_and_it_is_not_empty(directory):
    llm = LLM(directory("llama"), storage="paged", device="cpu", threads=1)
    prompt = "The harbour was quiet when the first boats returned with the morning tide."
    first, second, third = (llm.generate(prompt, GREEDY_12)[0] for _ in range(3))
    assert first.outputs == second.outputs == third.outputs
    assert first.outputs[0].text and len(first.outputs[0].token_ids) == 12
    assert llm.core.pool.prefix.counters.hits == 2


# -- R021: a block is shared only once its K/V is written ---------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix_cache", "length", "case", "storage"),
    by_day((True, False), (2 * BLOCK, 2 * BLOCK + 5), CASES, list(StorageKind)),
    ids=as_id,
)
def test_r021_the_same_prompt_twice_at_once_gives_what_it_gives_alone(load, case, storage, length, prefix_cache):
    """Where blocks are shared, the second waits for those that the first computes; else both are one step."""
    loaded, prompt = load(case), prompt_of(length)
    driver = Driver(loaded, storage, prefix_cache=prefix_cache)
    poison(driver)
    driver.add("one", prompt)
    driver.add("two", prompt)
    assert len(driver.step()) == (1 if prefix_cache else 2)
    driver.run()
    assert driver.core.pool.prefix.counters.hit_tokens == (shareable(case, storage, length) if prefix_cache else 0)
    for name in ("one", "two"):
        assert_same_bits(driver.outcomes[name], alone(loaded, prompt))
    driver.assert_idle()


@pytest.mark.parametrize(("steps", "case", "storage"), by_day((1, 2, 3, 4), CASES, list(StorageKind)), ids=as_id)
def test_r021_the_same_prompt_amid_a_chunked_prefill_waits_until_all_it_shares_is_written(load, case, storage, steps):
    """Beside it comes a prompt with nothing in common, which overtakes it."""
    loaded, prompt, other = load(case), prompt_of(80), prompt_of(40, seed=1)
    driver = Driver(loaded, storage, prefill_chunk=BLOCK)
    poison(driver)
    driver.add("one", prompt)
    for _ in range(steps):
        assert driver.step() == []
    driver.add("two", prompt)
    driver.add("other", other)
    driver.step()
    counters = driver.core.pool.prefix.counters
    assert counters.hit_tokens == (shareable(case, storage, 80) if steps * BLOCK >= 64 else 0)
    driver.run()
    assert counters.hit_tokens == shareable(case, storage, 80)
    for name, expected in (("one", prompt), ("two", prompt), ("other", other)):
        assert_same_bits(driver.outcomes[name], alone(loaded, expected))
    driver.assert_idle()


@every_case
@both_storages
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_r021_a_step_that_fails_between_two_layers_shares_nothing(load, case, storage, layer, monkeypatch):
    loaded, prompt = load(case), prompt_of(60)
    driver = Driver(loaded, storage, prefill_chunk=2 * BLOCK, max_batch_tokens=4 * BLOCK)
    poison(driver)
    driver.add("one", prompt)
    cache, attend = driver.core.runner.cache, driver.core.runner.cache.attend_qkv

    def failing(index, *args):
        if index == layer:
            raise DeviceLost
        return attend(index, *args)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "attend_qkv", failing)
        with pytest.raises(DeviceLost):
            driver.step()
    driver.add("two", prompt)
    driver.step()
    assert driver.core.pool.prefix.counters.hit_tokens == 0
    driver.run()
    for name in ("one", "two"):
        assert_same_bits(driver.outcomes[name], alone(loaded, prompt))
    driver.assert_idle()


# -- R023: digests that collide -----------------------------------------------------------------------------------


def constant(data: bytes) -> bytes:
    return b""


def one_byte(data: bytes) -> bytes:
    return bytes([sum(data) % 256])


COLLISIONS = [
    ("llama", StorageKind.DENSE, constant),
    ("llama", StorageKind.PAGED, one_byte),
    ("gemma3", StorageKind.PAGED, constant),
    ("mistral-window-5", StorageKind.PAGED, one_byte),
]
OTHER_COLLISIONS = [
    ("llama", StorageKind.DENSE, one_byte),
    ("llama", StorageKind.PAGED, constant),
    ("gemma3", StorageKind.PAGED, one_byte),
    ("mistral-window-5", StorageKind.PAGED, constant),
]


@pytest.mark.parametrize(
    ("case", "storage", "digest"),
    [*COLLISIONS, *(pytest.param(*each, marks=pytest.mark.nightly) for each in OTHER_COLLISIONS)],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "value", None),
)
def test_r023_fifty_prompts_whose_digests_collide_get_the_answers_of_an_engine_without_cache(
    load, case, storage, digest, monkeypatch
):
    """The prompts are three blocks each, all made from the same four, so that most blocks occur under many parents."""
    loaded, rng = load(case), random.Random(23)
    blocks = [prompt_of(BLOCK, seed) for seed in range(4)]
    made = rng.sample(list(itertools.product(blocks, repeat=3)), 50)
    prompts = [(*first, *second, *third, 7) for first, second, third in made]
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    without = Driver(loaded, prefix_cache=False)
    monkeypatch.setattr(prefix_cache, "PrefixTree", lambda size, groups, _: PrefixTree(size, groups, digest))
    colliding = Driver(loaded, storage)
    for i, prompt in enumerate(prompts):
        without.add(str(i), prompt, params)
    without.run()
    for i, prompt in enumerate(prompts):
        for time in ("first", "second"):
            colliding.add(f"{time} {i}", prompt, params)
            assert_same_bits(colliding.run()[f"{time} {i}"], without.outcomes[str(i)])
    assert without.core.pool.prefix.counters.hits == 0
    assert colliding.core.pool.prefix.counters.hits >= 50
    colliding.assert_idle()


# -- R026: preemption -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Told:
    """What the stream told of each request, event by event."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


def run_preempting(driver: Driver, rng: random.Random, every: int) -> tuple[dict[str, Told], int]:
    """Run to the end, taking a running request's blocks away every so many steps; returns how often."""
    told = {name: Told() for name in driver.outcomes}
    preemptions = 0
    for step in itertools.count(1):
        if not driver.core.has_work:
            return told, preemptions
        for event in driver.step():
            mine = told[event.delta.request_id]
            mine.pieces.append(event.delta.text)
            if event.logprobs is not None:
                mine.logprobs.append(event.logprobs)
        running = [name for name, live in driver.core._live.items() if live.state.slot is not None]
        if every and step % every == 0 and running:
            driver.core.preempt(rng.choice(running))
            preemptions += 1
    raise AssertionError


PREEMPTED = {
    "seeded": SamplingParams(max_tokens=200, temperature=0.8, ignore_eos=True),
    "greedy": SamplingParams(max_tokens=80, ignore_eos=True),
    "penalties": SamplingParams(
        max_tokens=80, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5, ignore_eos=True
    ),
    "logprobs": SamplingParams(max_tokens=80, temperature=0.8, logprobs=3, ignore_eos=True),
}


@pytest.mark.parametrize("kind", [*PREEMPTED, "stop string"])
def test_r026_preempted_requests_go_on_as_if_nothing_had_happened(load, kind):
    """Resumed with what the prefix cache has kept of them, and computed anew."""
    loaded = load()
    prompts = {str(i): prompt_of(20 + i, seed=i) for i in range(4)}
    if kind == "stop string":
        whole = SamplingParams(max_tokens=80, temperature=0.8, ignore_eos=True)
        late = alone(loaded, prompts["0"], whole, seed=0).text[-6:-2]
        params = replace(whole, stop=[late])
    else:
        params = PREEMPTED[kind]
    length = params.max_tokens

    def serve(every: int, **settings):
        driver = Driver(loaded, max_num_seqs=4, **settings)
        for i, (name, prompt) in enumerate(prompts.items()):
            driver.add(name, prompt, params, seed=i)
        told, preemptions = run_preempting(driver, random.Random(26), every)
        driver.assert_idle()
        return driver.outcomes, told, preemptions

    calm, told_calm, _ = serve(0)
    if kind == "stop string":
        assert calm["0"].finish_reason == "stop" and late not in calm["0"].text
    for is_cached in (True, False):
        # The pool is short of what all four need in the end, so they give way by themselves too.
        blocks = 4 * (20 + length) // BLOCK * 4 // 5
        got, told, preemptions = serve(length // 15, num_kv_blocks=blocks, prefix_cache=is_cached)
        assert preemptions >= 10
        for name in prompts:
            assert_same_bits(got[name], calm[name])
            assert told[name].logprobs == told_calm[name].logprobs
            assert "".join(told[name].pieces) == calm[name].text
        if kind != "stop string":
            assert [len(outcome.token_ids) for outcome in got.values()] == [length] * 4
        assert [len(mine.logprobs) for mine in told.values()] == [length if kind == "logprobs" else 0] * 4


@both_storages
@pytest.mark.parametrize("case", ["gemma3", "mistral-window-5"])
def test_r026_windows_come_back_with_a_preempted_request(load, case, storage):
    loaded = load(case)
    params = SamplingParams(max_tokens=40, temperature=0.8, ignore_eos=True)
    driver = Driver(loaded, storage, max_num_seqs=2, max_context=128)
    for i in range(4):
        driver.add(str(i), prompt_of(20 + i, seed=i), params, seed=i)
    _, preemptions = run_preempting(driver, random.Random(26), 7)
    assert preemptions >= 10
    for i in range(4):
        assert_same_bits(driver.outcomes[str(i)], alone(loaded, prompt_of(20 + i, seed=i), params, seed=i))
    driver.assert_idle()
