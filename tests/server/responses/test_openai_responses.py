"""The official OpenAI client's `responses` end to end: whole, streamed, tools, thinking, schemas and earlier turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from api_calls import app_over
from fake_engine import FakeEngine
from live_app import served
from openai.types.responses import Response
from pydantic import BaseModel
from tool_server import CALL, SECOND, THINKING, WEATHER, engine_over, prompt_of

TOOL: dict[str, Any] = {"type": "function", **WEATHER["function"], "strict": False}
TIME: dict[str, Any] = {"type": "function", "name": "get_time", "parameters": None, "strict": False}
ASKED: dict[str, Any] = {"model": "fake-model", "input": "hi"}


@asynccontextmanager
async def client_of(engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        served(app_over(engine)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def talk(engine: FakeEngine, script: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async def run() -> None:
        async with client_of(engine) as client:
            await script(client)

    asyncio.run(run())


async def events_of(client: openai.AsyncOpenAI, **fields: Any) -> list[Any]:
    return [event async for event in await client.responses.create(stream=True, **fields)]


def plain(response: Response) -> dict[str, Any]:
    """What two answers to the same request have in common."""
    told = response.model_dump(mode="json", exclude={"id", "created_at", "completed_at"})
    for item in told["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return told


def test_a_response_has_the_text_the_usage_and_what_was_asked() -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(**ASKED, instructions="Be brief.", metadata={"a": "b"}, temperature=0)
        assert response.output_text == "Hello there, world." and response.status == "completed"
        assert response.id.startswith("resp_") and response.metadata == {"a": "b"} and response.temperature == 0
        assert response.usage is not None and response.usage.output_tokens == 19  # "th" is nowhere; the end counts
        assert response.usage.total_tokens == response.usage.input_tokens + 19
        assert prompt_of(engine).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>")

    engine = FakeEngine()
    talk(engine, script)


def test_a_stream_has_the_events_in_their_order_and_ends_with_the_whole_response() -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        whole = await client.responses.create(**ASKED)
        events = await events_of(client, **ASKED)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        names = [event.type.removeprefix("response.") for event in events]
        assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
        assert set(names[4:-4]) == {"output_text.delta"}
        assert (
            "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
        )
        assert events[0].response.status == "in_progress" and events[0].response.output == []
        assert plain(events[-1].response) == plain(whole)
        assert events[-2].item == events[-1].response.output[0]

    talk(FakeEngine(), script)


def test_the_clients_stream_helper_gathers_text_thinking_and_calls() -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        fields: dict[str, Any] = {**ASKED, "tools": [TOOL, TIME]}
        async with client.responses.stream(**fields) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        whole = await client.responses.create(**fields)
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
        assert whole.output_text == final.output_text == "One moment."
        assert [item.type for item in whole.output] == [item.type for item in final.output]
        calls = [item for item in final.output if item.type == "function_call"]
        assert [(call.name, json.loads(call.arguments)) for call in calls] == [
            ("get_weather", {"city": "Bonn"}),
            ("get_time", {}),
        ]
        pieces = [event for event in events if event.type == "response.function_call_arguments.delta"]
        assert (
            len(pieces) > 5
            and "".join(piece.delta for piece in pieces if piece.output_index == 2) == calls[0].arguments
        )
        done = [event for event in events if event.type == "response.function_call_arguments.done"]
        assert [event.arguments for event in done] == [call.arguments for call in calls]
        thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        assert thought == "Which city?" and final.output[0].content[0].text == thought  # type: ignore[union-attr,index]
        assert final.usage is not None and final.usage.output_tokens_details.reasoning_tokens > 0

    talk(engine_over(f"Which city?</think>One moment.\n{CALL}\n{SECOND}", THINKING), script)


@pytest.mark.parametrize("by_id", [True, False])
def test_results_of_calls_are_fed_back_with_the_items_or_behind_the_earlier_response(by_id: bool) -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(**ASKED, tools=[TOOL])
        call = first.output[-1]
        assert call.type == "function_call"
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "19 degrees"}
        engine.reply = "It is warm."
        if by_id:
            fields: dict[str, Any] = {"input": [result], "previous_response_id": first.id}
        else:
            fields = {"input": [{"role": "user", "content": "hi"}, *first.output, result]}
        second = await client.responses.create(model="fake-model", tools=[TOOL], **fields)
        assert second.output_text == "It is warm." and second.previous_response_id == fields.get("previous_response_id")
        said = prompt_of(engine).split("<|im_start|>")
        assert said[1] == "user\nhi<|im_end|>\n" and said[2].startswith("assistant\nOne moment.<tool_call>")
        assert '{\\"city\\": \\"Bonn\\"}' in said[2] or '{"city": "Bonn"}' in said[2]
        assert said[3] == "tool\n19 degrees<|im_end|>\n" and said[4] == "assistant\n" and len(said) == 5

    engine = engine_over(f"One moment.\n{CALL}")
    talk(engine, script)


def test_instructions_hold_for_one_response_only() -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(**ASKED, instructions="Be brief.")
        await client.responses.create(model="fake-model", input="more", previous_response_id=first.id)
        assert "Be brief." not in prompt_of(engine) and "Hello there, world." in prompt_of(engine)

    engine = FakeEngine()
    talk(engine, script)


@pytest.mark.parametrize("stream", [True, False])
def test_a_response_is_kept_until_it_is_deleted(stream: bool) -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        if stream:
            response = (await events_of(client, **ASKED))[-1].response
        else:
            response = await client.responses.create(**ASKED)
        assert plain(await client.responses.retrieve(response.id)) == plain(response)
        follower = await client.responses.create(model="fake-model", input="more", previous_response_id=response.id)
        await client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await client.responses.retrieve(response.id)
        assert gone.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(response.id)
        with pytest.raises(openai.BadRequestError) as before:
            await client.responses.create(**ASKED, previous_response_id=response.id)
        assert before.value.code == "previous_response_not_found" and before.value.param == "previous_response_id"
        await client.responses.create(model="fake-model", input="on", previous_response_id=follower.id)
        assert "hi" in prompt_of(engine) and "more" in prompt_of(engine)

    engine = FakeEngine()
    talk(engine, script)


def test_what_is_not_to_be_stored_is_not() -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(**ASKED, store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)

    talk(FakeEngine(), script)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_the_limit_cuts_off_is_incomplete_with_the_reason(stream: bool) -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        fields: dict[str, Any] = {**ASKED, "max_output_tokens": 5}
        if stream:
            last = (await events_of(client, **fields))[-1]
            assert last.type == "response.incomplete"
            response = last.response
        else:
            response = await client.responses.create(**fields)
        assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
        assert response.output_text == "Hello" and response.output[0].status == "incomplete"
        assert response.usage.output_tokens == 5 and response.max_output_tokens == 5

    talk(FakeEngine(), script)


def test_a_schema_holds_the_answer_and_is_parsed_by_the_clients_helper() -> None:
    class City(BaseModel):
        name: str

    async def script(client: openai.AsyncOpenAI) -> None:
        parsed = await client.responses.parse(**ASKED, text_format=City)
        assert parsed.output_parsed == City(name="Bonn")
        grammar = engine.requests[-1].params.grammar
        assert grammar is not None and "name" in str(grammar)
        await client.responses.create(**ASKED, text={"format": {"type": "json_object"}})
        assert engine.requests[-1].params.grammar is not None
        schema = {"type": "json_schema", "name": "a b", "schema": {"type": "object"}, "strict": True}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(**ASKED, text={"format": schema})  # type: ignore[arg-type]
        assert refused.value.param == "text.format.name"

    engine = FakeEngine(reply='{"name": "Bonn"}')
    talk(engine, script)


def test_sampling_settings_reach_the_engine() -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        own = {"top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["x"], "priority": 3, "cache_salt": "s"}
        await client.responses.create(**ASKED, temperature=0.5, top_p=0.9, max_output_tokens=9, extra_body=own)
        request = engine.requests[-1]
        params = request.params
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 5, 0.1)
        assert (params.seed, tuple(params.stop), params.max_tokens) == (7, ("x",), 9)
        assert (request.priority, request.cache_salt) == (3, "s")

    engine = FakeEngine()
    talk(engine, script)


def test_a_fault_in_mid_stream_is_a_failed_response_which_is_not_kept() -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        events = await events_of(client, **ASKED)
        assert events[-1].type == "response.failed"
        failed = events[-1].response
        assert failed.status == "failed" and failed.error.code == "server_error" and failed.output_text
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(failed.id)

    talk(FakeEngine(fault="fault"), script)
