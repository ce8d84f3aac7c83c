"""Nothing of one conversation reaches another: through shared prefixes, evictions, wrapped rings, reused slots."""

from __future__ import annotations

import random

import pytest
import torch

from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import Driver, alone, open_model, prompt_of
from tests.tiny_models import save_hf, save_tokenizer

NUM_REQUESTS = 60
COMMON = prompt_of(48, seed=9)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def loaded(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save_hf(path, request.param)
    save_tokenizer(path)
    return open_model(path)


def conversations(rng: random.Random) -> dict[str, tuple[tuple[int, ...], SamplingParams]]:
    """Prompts that share 0 to 3 blocks of one beginning and then go on with a marker of their own; some come twice."""
    found: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
    for i in range(NUM_REQUESTS):
        if i and rng.random() < 0.2:
            found[f"{i}"] = found[f"{rng.randrange(i)}"]
            continue
        shared = COMMON[: rng.choice((0, 7, 16, 32, 48))]
        marker = prompt_of(rng.randint(1, 60), seed=100 + i)
        params = SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=True)
        found[f"{i}"] = ((*shared, *marker), params)
    return found


def poison(driver: Driver) -> None:
    """Whatever no sequence has written is NaN."""
    for store in driver.core.runner.cache._layers.values():
        for rows in (store.blocks, store.ring):
            if rows is not None:
                for plane in (*rows.k.planes().values(), *rows.v.planes().values()):
                    plane.fill_(float("nan"))


@pytest.mark.parametrize("storage", list(StorageKind), ids=lambda kind: kind.value)
def test_each_of_many_concurrent_conversations_has_the_bits_it_has_alone(loaded, storage):
    rng = random.Random(f"leaks {storage.value}")
    requests = conversations(random.Random("leaks"))
    settings = {"num_kv_blocks": 40} if storage is StorageKind.PAGED else {}
    driver = Driver(loaded, storage, max_context=128, max_num_seqs=5, max_batch_tokens=40, prefill_chunk=24, **settings)
    poison(driver)
    waiting = list(requests.items())
    while waiting or driver.core.has_work:
        for _ in range(rng.randint(0, 3)):
            if waiting:
                name, (prompt, params) = waiting.pop()
                driver.add(name, prompt, params)
        driver.step()
        running = [name for name, live in driver.core._live.items() if live.state.slot is not None]
        if running and rng.random() < 0.1:
            driver.core.preempt(rng.choice(running))
    for name, (prompt, params) in requests.items():
        expected = alone(loaded, prompt, params)
        assert driver.outcomes[name].token_ids == expected.token_ids
        assert torch.equal(torch.stack(driver.outcomes[name].logits), torch.stack(expected.logits))
    if storage is StorageKind.PAGED:
        counters = driver.core.pool.prefix.counters
        assert min(counters.hits, counters.evictions) >= 10
    driver.assert_idle()
