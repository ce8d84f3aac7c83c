"""Real tiny models served by a process or a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine.async_client import LOAD_ENGINE, ProcessEngine, RemoteEngine, ThreadEngine
from octavo.engine.events import StepEvent
from octavo.engine.stats import EngineStats
from octavo.errors import InvalidRequest, LoadError
from octavo.llm import LLM
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from tests.engine.engine_factories import WITH_FAULTS
from tests.engine.engine_stage import LIMITS, Stage, collect, idle, ids_of, is_gone, text_of
from tests.engine.tiny_engines import prompt_of

CONFIG = EngineConfig(
    dtype="bfloat16",
    device="cpu",
    threads=1,
    max_context=512,
    max_num_seqs=3,
    prefill_chunk=4,
    num_kv_blocks=96,
)


@pytest.fixture(scope="module", params=[ProcessEngine, ThreadEngine], ids=["process", "thread"])
def tiny(request: pytest.FixtureRequest, directory: Callable[[str], Path]) -> Iterator[Stage]:
    """A tiny real model, served in either form."""
    stage = Stage(request.param(LOAD_ENGINE, (directory("llama"), CONFIG, "tiny"), LIMITS))
    yield stage
    stage.close()


def long_request(request_id: str, prompt: int = 20, max_tokens: int = 400) -> Request:
    return Request(request_id, prompt_of(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=True), 0)


def test_outputs_equal_those_of_the_offline_api(tiny: Stage, directory: Callable[[str], Path]) -> None:
    llm = LLM(directory("llama"), dtype="bfloat16", device="cpu", threads=1, max_context=512)
    params = [
        SamplingParams(max_tokens=24, ignore_eos=True),
        SamplingParams(max_tokens=24, temperature=0.9, seed=7, ignore_eos=True),
        SamplingParams(max_tokens=9, logprobs=3),
        SamplingParams(max_tokens=24, temperature=1.0, seed=8, stop=("e",)),
    ]
    prompts = [prompt_of(3 + 20 * i, i) for i in range(len(params))]
    expected = [llm.generate([p], each)[0].outputs[0] for p, each in zip(prompts, params, strict=True)]

    async def scene(engine: RemoteEngine) -> list[list[StepEvent]]:
        requests = [
            Request(f"r{i}", p, each, each.seed or 0) for i, (p, each) in enumerate(zip(prompts, params, strict=True))
        ]
        return await asyncio.gather(*(collect(engine, request) for request in requests))

    for events, output in zip(tiny.play(scene), expected, strict=True):
        assert ids_of(events) == output.token_ids
        assert text_of(events) == output.text
        assert events[-1].delta.finish_reason == output.finish_reason
        assert [event.delta.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
        found = tuple(event.logprobs for event in events if event.logprobs is not None)
        assert found == (output.logprobs or ())


def test_choices_of_one_prompt_run_together(tiny: Stage) -> None:
    async def scene(engine: RemoteEngine) -> list[StepEvent]:
        params = SamplingParams(max_tokens=6, temperature=1.0, ignore_eos=True)
        return await collect(engine, *(Request(f"c{i}", prompt_of(5), params, 3, i) for i in range(3)))

    events = tiny.play(scene)
    by_choice = [ids_of([event for event in events if event.delta.index == i]) for i in range(3)]
    assert [len(ids) for ids in by_choice] == [6, 6, 6]
    assert len(set(by_choice)) > 1


@pytest.mark.parametrize("where", ["queue", "prefill", "decode"])
def test_leaving_a_request_frees_its_blocks_wherever_it_is(tiny: Stage, where: str) -> None:
    async def scene(engine: RemoteEngine) -> None:
        before = sum(block.free + block.cached for block in (await idle(engine)).blocks)
        occupants = [engine.run([long_request(f"o{i}")]) for i in range(3 if where == "queue" else 1)]
        for occupant in occupants:
            await anext(occupant)
        run = engine.run([long_request(where, prompt=20 if where == "decode" else 400, max_tokens=100)])
        first = asyncio.ensure_future(anext(run))
        if where == "decode":
            await first
        for _ in range(2):  # a prefill takes a hundred steps
            await anext(occupants[0])
        assert where != "queue" or not first.done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        for each in (run, *occupants):
            await each.aclose()
        after = await idle_again(engine)
        assert sum(block.free + block.cached for block in after.blocks) == before
        assert all(block.live == 0 for block in after.blocks)
        assert len(ids_of(await collect(engine, long_request("next", max_tokens=3)))) == 3

    async def idle_again(engine: RemoteEngine) -> EngineStats:
        await asyncio.sleep(0)
        await engine.reset_prefix_cache()  # answered after the aborts
        return await idle(engine)

    tiny.play(scene)


def test_what_the_engine_refuses_is_raised_with_its_own_words(tiny: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        with pytest.raises(InvalidRequest, match="the prompt has 600 tokens; the context holds 512"):
            await collect(engine, long_request("long", prompt=600))
        with pytest.raises(InvalidRequest, match="the prompt has 0 tokens"):
            await collect(engine, Request("empty", (), SamplingParams(), 0))

    tiny.play(scene)


def test_a_server_learns_what_it_serves(tiny: Stage, directory: Callable[[str], Path]) -> None:
    info = tiny.engine.info
    assert (info.name, info.family, info.vocab_size) == ("tiny", "llama", 384)
    assert (info.max_context, info.max_prompt_tokens, info.dtype, info.storage) == (512, 511, "bfloat16", "paged")
    ids = tiny.engine.tokenizer.encode("as it was")
    assert tiny.engine.tokenizer.decode(ids) == "as it was"


def test_a_gguf_tokenizer_crosses_as_it_is(directory: Callable[[str], Path]) -> None:
    stage = Stage(ProcessEngine.for_model(directory("llama-q4_0"), CONFIG, "tiny"))
    try:
        text = "Schöne Grüße, 123 <|im_start|>"
        expected = LLM(directory("llama-q4_0"), device="cpu", threads=1).tokenizer
        for parse in (False, True):
            assert stage.engine.tokenizer.encode(text, parse_special=parse) == expected.encode(
                text, parse_special=parse
            )
    finally:
        stage.close()


def test_requests_that_fail_in_a_step_of_a_real_engine_end_with_their_causes_and_no_other_does(
    directory: Callable[[str], Path],
) -> None:
    stage = Stage(ProcessEngine(WITH_FAULTS, (directory("llama"), CONFIG)))

    async def scene(engine: RemoteEngine) -> list[list[StepEvent]]:
        names = ("nan", "sound", "raise", "other")
        return await asyncio.gather(*(collect(engine, long_request(name, max_tokens=12)) for name in names))

    try:
        nan, sound, raised, other = stage.play(scene)
        assert stage.engine.status.state == "ready"
    finally:
        stage.close()
    for bad in (nan, raised):
        assert (bad[-1].fault, bad[-1].delta.finish_reason) == ("fault", "error")
    assert "in the middle of a step" in (raised[-1].error or "")
    assert ids_of(sound) == ids_of(other)
    assert len(ids_of(sound)) == 12


def test_deadlines_end_requests_that_wait_or_take_too_long(tiny: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        occupants = [engine.run([long_request(f"o{i}")]) for i in range(3)]
        for occupant in occupants:
            await anext(occupant)
        late = replace(long_request("late"), queue_timeout_s=0.001)
        assert [event.fault for event in await collect(engine, late)] == ["queue_timeout"]
        for occupant in occupants:
            await occupant.aclose()
        slow = replace(long_request("slow"), timeout_s=0.05)
        events = await collect(engine, slow)
        assert events[-1].fault == "request_timeout"
        assert len(ids_of(events)) < 400

    tiny.play(scene)


def test_a_model_that_cannot_be_loaded_is_refused_as_it_is_in_this_process(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and nothing more")
    with pytest.raises(LoadError) as expected:
        LLM(path)

    async def main() -> None:
        engine = ProcessEngine.for_model(path, CONFIG, "broken")
        with pytest.raises(LoadError) as raised:
            await engine.start()
        assert str(raised.value) == str(expected.value)
        assert type(raised.value) is type(expected.value)
        assert engine.status.state == "failed"
        assert is_gone(engine)

    asyncio.run(main())
