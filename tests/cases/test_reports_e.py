"""Reports of kind e, continuous batching, replayed through the engine: whoever leaves gives everything back."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from octavo.engine.client import InProcessClient
from octavo.errors import InvalidRequest
from octavo.llm import LLM
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import GREEDY_12, STORAGES, Driver, Outcome, alone, open_model, prompt_of
from tests.tiny_models import EOS_TOKEN_ID, save_hf

both_storages = pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
LONG = SamplingParams(max_tokens=4000, ignore_eos=True)
ENDS = {"stop": "stop", "stop string": "stop", "length": "length"}


def stage(driver: Driver, request_id: str) -> str:
    """How far a request has come that has not ended."""
    state = driver.core._live[request_id].state
    if state.slot is None:
        return "queue"
    return "prefill" if state.num_computed_tokens < len(state.request.prompt_token_ids) else "decode"


def assert_all_back(driver: Driver) -> None:
    """Every block is free or cached, none is live, and these make up the pool."""
    driver.assert_idle()
    for pool in driver.core.pool.pools:
        assert pool.num_free + pool.num_cached == pool.num_blocks
        assert pool.num_live == 0


# -- R031: blocks come back in whatever way requests end ------------------------------------------------------------


@dataclass(slots=True)
class Visitors:
    """Users of one client, each with a request; `ends` counts how these ended or where they were left."""

    driver: Driver
    client: InProcessClient
    stop: str
    rng: random.Random
    ends: Counter[str] = field(default_factory=Counter)

    def visit(self, number: int) -> Iterator[None]:
        """One user's turns. Those who leave do so after some tokens, or as soon as a companion has some; who is kept
        waiting too long for that has the whole answer by then.
        """
        kind = self.rng.choice(("stop", "stop string", "length", "refused", "leaves", "leaves early"))
        name, length = str(number), 150 if kind == "leaves early" else 40
        prompt = prompt_of(length, 0 if kind == "stop string" else number)
        patience = self.rng.randint(1, 4)
        asked = [Request(name, prompt, self.params(kind), 0)]
        if kind == "leaves early":
            asked.insert(0, Request(f"{name} companion", prompt_of(3, number), self.params(kind), 0))
        with closing(self.client.run(asked)) as events:
            try:
                for event in events:
                    patience -= 1
                    if kind in ("leaves", "leaves early") and patience <= 0 and name in self.driver.core._live:
                        self.ends[f"left in {stage(self.driver, name)}"] += 1
                        return
                    if event.delta.request_id == name and event.delta.finish_reason is not None:
                        assert event.delta.finish_reason == ENDS.get(kind, "length")
                        self.ends[kind] += 1
                    yield
            except InvalidRequest:
                self.ends["refused"] += 1

    def params(self, kind: str) -> SamplingParams:
        return {
            "stop": SamplingParams(max_tokens=12, logit_bias={EOS_TOKEN_ID: 1e4}),
            "stop string": SamplingParams(max_tokens=12, stop=[self.stop], ignore_eos=True),
            "length": SamplingParams(max_tokens=self.rng.randint(1, 8), ignore_eos=True),
            "refused": SamplingParams(max_tokens=3, logit_bias={10**6: 1.0}),
        }.get(kind, SamplingParams(max_tokens=30, ignore_eos=True))


# The step loop's own test of the same has the other two by day.
@pytest.mark.parametrize(
    ("case", "storage"),
    [
        ("llama", StorageKind.PAGED),
        ("gemma3", StorageKind.DENSE),
        pytest.param("llama", StorageKind.DENSE, marks=pytest.mark.nightly),
        pytest.param("gemma3", StorageKind.PAGED, marks=pytest.mark.nightly),
    ],
    ids=lambda value: value if isinstance(value, str) else value.value,
)
def test_r031_two_hundred_requests_eight_at_a_time_give_every_block_back(load, storage, case):
    loaded, rng = load(case), random.Random(31)
    driver = Driver(loaded, storage, max_num_seqs=3, max_batch_tokens=40, prefill_chunk=16)
    driver.outcomes = defaultdict(Outcome)
    visitors = Visitors(driver, InProcessClient(driver.core), alone(loaded, prompt_of(40)).text[2:4], rng)
    for burst in range(5):
        waiting = [visitors.visit(40 * burst + i) for i in range(40)]
        present: list[Iterator[None]] = []
        while waiting or present:
            while waiting and len(present) < 8:
                present.append(waiting.pop())
            visitor = rng.choice(present)
            if next(visitor, "gone") == "gone":
                present.remove(visitor)
        assert_all_back(driver)
    assert sum(visitors.ends.values()) == 200
    for end in (*ENDS, "refused", "left in queue", "left in prefill", "left in decode"):
        assert visitors.ends[end], end


# -- R032: nothing goes on for a client that has gone ---------------------------------------------------------------


@pytest.fixture(scope="module")
def long_context(tmp_path_factory):
    path = tmp_path_factory.mktemp("long")
    save_hf(path, "llama", num_hidden_layers=1, max_position_embeddings=8192)
    return open_model(path)


@both_storages
@pytest.mark.parametrize("when", ["queue", "prefill", "decode"])
def test_r032_forty_generations_left_at_once_cost_the_next_request_nothing(long_context, storage, when, caplog):
    expected = alone(long_context, prompt_of(9)).token_ids
    driver = Driver(long_context, storage, max_context=4400, max_num_seqs=4, prefill_chunk=64, max_batch_tokens=256)
    for group in range(8):
        victims = [f"{group} {i}" for i in range(5)]  # one more than run at once
        for name in victims:
            driver.add(name, prompt_of(300, seed=group), LONG)
        watched = victims[-1] if when == "queue" else victims[0]
        driver.step()
        while stage(driver, watched) != when:
            driver.step()
        for name in victims:
            driver.core.abort(name)
        assert driver.step() == []
        assert_all_back(driver)
        driver.add(f"next {group}", prompt_of(9))
        assert [event.delta.request_id for event in driver.step()] == [f"next {group}"]
        assert driver.run()[f"next {group}"].token_ids == expected
    assert caplog.records == []


@both_storages
def test_r032_a_stream_that_is_closed_and_a_call_that_is_interrupted_stop_at_once(long_context, storage, monkeypatch):
    driver = Driver(long_context, storage, max_context=4400, max_num_seqs=4)
    driver.outcomes = defaultdict(Outcome)
    llm = LLM.over(driver.core)
    for _ in range(40):
        with closing(llm.stream(prompt_of(40), LONG)) as stream:
            next(stream)
            assert llm.core.has_work
        assert_all_back(driver)

    def interrupt(request_id, logits):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.core._steps, "_on_logits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompt_of(40), LONG)
    assert_all_back(driver)
    assert llm.generate(prompt_of(9), GREEDY_12)[0].outputs[0].token_ids == tuple(
        alone(long_context, prompt_of(9)).token_ids
    )
