"""The official OpenAI client calls tools end to end: offers them, runs what is called, sends the results back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from api_calls import app_over
from fake_engine import FakeEngine
from pydantic import BaseModel
from tool_server import CALL, SECOND, THINKING, TIME, WEATHER, engine_over, prompt_of


@asynccontextmanager
async def client_of(engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx.ASGITransport(app=app_over(engine))
    async with httpx.AsyncClient(transport=transport) as http:
        yield openai.AsyncOpenAI(base_url="http://server/v1", api_key="none", http_client=http, max_retries=0)


ASKED: dict[str, Any] = {"model": "fake-model", "tools": [WEATHER, TIME]}
HI: list[Any] = [{"role": "user", "content": "What is the weather in Bonn?"}]


def test_a_conversation_with_two_calls_and_their_results() -> None:
    async def talk() -> None:
        engine = engine_over(f"One moment.\n{CALL}\n{SECOND}")
        async with client_of(engine) as client:
            first = (await client.chat.completions.create(messages=HI, **ASKED)).choices[0]
            assert first.finish_reason == "tool_calls" and first.message.content == "One moment."
            calls = first.message.tool_calls
            assert calls is not None and [call.type for call in calls] == ["function"] * 2
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"{call.function.name}: {call.function.arguments}"}
                for call in calls
                if call.type == "function"
            ]
            engine.reply = "It is sunny."
            second = await client.chat.completions.create(messages=[*HI, first.message, *results], **ASKED)
            assert second.choices[0].message.content == "It is sunny." and second.choices[0].finish_reason == "stop"
            assert second.choices[0].message.tool_calls is None
            assert 'get_weather: {"city": "Bonn"}' in prompt_of(engine)

    asyncio.run(talk())


def test_the_clients_stream_helper_gathers_the_calls_and_their_arguments() -> None:
    async def talk() -> None:
        async with client_of(engine_over(CALL + SECOND)) as client:
            strict = [{**tool, "function": {**tool["function"], "strict": False}} for tool in (WEATHER, TIME)]
            async with client.chat.completions.stream(model="fake-model", messages=HI, tools=strict) as stream:  # type: ignore[arg-type]
                events = [event async for event in stream]
                final = await stream.get_final_completion()
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        assert [(event.name, json.loads(event.arguments)) for event in done] == [
            ("get_weather", {"city": "Bonn"}),
            ("get_time", {}),
        ]
        pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        assert len(pieces) > 5
        message = final.choices[0].message
        assert message.content is None and final.choices[0].finish_reason == "tool_calls"
        assert [call.function.name for call in message.tool_calls or []] == ["get_weather", "get_time"]

    asyncio.run(talk())


def test_the_clients_parse_helper_takes_the_arguments_of_a_strict_tool_into_a_model() -> None:
    class GetWeather(BaseModel):
        city: str

    async def talk() -> None:
        reply = CALL.replace("get_weather", "GetWeather")
        engine = engine_over(reply)
        async with client_of(engine) as client:
            tool = openai.pydantic_function_tool(GetWeather)
            answer = await client.chat.completions.parse(
                model="fake-model", messages=HI, tools=[tool], tool_choice="required"
            )
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.function.parsed_arguments == GetWeather(city="Bonn")
        assert engine.requests[-1].params.grammar is not None

    asyncio.run(talk())


def test_the_client_keeps_reasoning_as_a_field_of_its_own() -> None:
    async def talk() -> None:
        async with client_of(engine_over("Hm.</think>Yes.", THINKING)) as client:
            whole = (await client.chat.completions.create(messages=HI, model="fake-model")).choices[0].message
            assert (whole.model_extra or {})["reasoning_content"] == "Hm." and whole.content == "Yes."
            stream = await client.chat.completions.create(messages=HI, model="fake-model", stream=True)
            deltas = [chunk.choices[0].delta async for chunk in stream]
            assert "".join((each.model_extra or {}).get("reasoning_content", "") for each in deltas) == "Hm."
            assert "".join(each.content or "" for each in deltas) == "Yes."

    asyncio.run(talk())


def test_a_choice_of_what_is_not_offered_is_the_clients_bad_request() -> None:
    async def talk() -> None:
        async with client_of(engine_over("x")) as client:
            with pytest.raises(openai.BadRequestError, match="tool_choice") as caught:
                await client.chat.completions.create(
                    messages=HI, tool_choice={"type": "function", "function": {"name": "nope"}}, **ASKED
                )
            assert caught.value.param == "tool_choice"

    asyncio.run(talk())
