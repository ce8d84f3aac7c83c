"""The official Anthropic client end to end: whole, streamed, tools, thinking, stop sequences and counted tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from api_calls import app_over
from asgi_calls import fake_app
from fake_engine import FakeEngine
from live_app import served
from tool_server import CALL, SECOND, THINKING, WEATHER, engine_over, prompt_of

from octavo.errors import QueueFull
from octavo.server.generation import CallUsage
from octavo.server.messages.answer import usage_object

FUNCTION: dict[str, Any] = WEATHER["function"]
TOOL: dict[str, Any] = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}
TIME: dict[str, Any] = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
HI: list[Any] = [{"role": "user", "content": "hi"}]
ASKED: dict[str, Any] = {"model": "fake-model", "messages": HI, "max_tokens": 4000}
Script = Callable[[anthropic.AsyncAnthropic], Awaitable[None]]


@asynccontextmanager
async def client_of(app: Any, key: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with served(app) as url, anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
        yield client


def talk(engine: FakeEngine, script: Script, key: str = "none", **settings: Any) -> None:
    app = fake_app(engine, **settings) if settings else app_over(engine)

    async def run() -> None:
        async with client_of(app, key) as client:
            await script(client)

    asyncio.run(run())


def plain(message: Any) -> dict[str, Any]:
    """What two answers to the same request have in common."""
    told: dict[str, Any] = message.model_dump(mode="json", exclude={"id"}, exclude_none=True)
    for block in told["content"]:
        for name in ("id", "parsed_output"):
            block.pop(name, None)
    return told


def test_a_message_has_the_text_the_reason_and_the_usage() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        message = await client.messages.create(**ASKED, system="Be brief.")
        assert [block.type for block in message.content] == ["text"]
        assert message.content[0].text == "Hello there, world."  # type: ignore[union-attr]
        assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
        assert message.id.startswith("msg_") and message.model == "fake-model" and message._request_id
        prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert prompt_of(engine) == prompt
        counted = len(engine.requests[-1].prompt_token_ids)
        assert (message.usage.input_tokens, message.usage.output_tokens) == (counted, 19)
        again = await client.messages.count_tokens(model="fake-model", messages=HI, system="Be brief.")
        assert again.input_tokens == counted

    engine = FakeEngine()
    talk(engine, script)


def test_a_stream_has_the_events_in_their_order() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        events = [event async for event in await client.messages.create(**ASKED, stream=True)]
        names = [event.type for event in events]
        assert names[:2] == ["message_start", "content_block_start"]
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert set(names[2:-3]) == {"content_block_delta"} and len(names) > 15
        start, end = events[0], events[-2]
        assert start.type == "message_start" and end.type == "message_delta"
        assert start.message.content == [] and start.message.stop_reason is None
        assert start.message.usage.input_tokens == len(engine.requests[-1].prompt_token_ids)
        assert end.delta.stop_reason == "end_turn" and end.usage.output_tokens == 19

    engine = FakeEngine()
    talk(engine, script)


@pytest.mark.parametrize(
    ("engine", "fields"),
    [
        (FakeEngine(), {}),
        (FakeEngine(), {"max_tokens": 5}),
        (FakeEngine(), {"stop_sequences": ["xyz", "wor"]}),
        (engine_over(f"Which city?</think>One moment.\n{CALL}\n{SECOND}", THINKING), {"tools": [TOOL, TIME]}),
    ],
    ids=["text", "limit", "stop", "tools"],
)
def test_the_clients_stream_helper_gathers_what_a_whole_answer_says(engine: FakeEngine, fields: dict[str, Any]) -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        whole = await client.messages.create(**{**ASKED, **fields})
        async with client.messages.stream(**{**ASKED, **fields}) as stream:
            gathered = await stream.get_final_message()
        assert plain(gathered) == plain(whole)

    talk(engine, script)


def test_thinking_and_calls_are_blocks_and_results_are_fed_back() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        first = await client.messages.create(**ASKED, tools=[TOOL, TIME])
        assert first.stop_reason == "tool_use"
        thinking, text, weather, time = first.content
        assert thinking.type == "thinking" and thinking.thinking == "Which city?"
        assert text.type == "text" and text.text == "One moment."
        assert weather.type == "tool_use" and (weather.name, weather.input) == ("get_weather", {"city": "Bonn"})
        assert time.type == "tool_use" and (time.name, time.input) == ("get_time", {})
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": weather.id, "content": [{"type": "text", "text": "19 degrees"}]},
            {"type": "tool_result", "tool_use_id": time.id, "content": "no clock", "is_error": True},
            {"type": "text", "text": "Well?"},
        ]
        engine.reply = "</think>It is warm."
        turns: list[Any] = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        second = await client.messages.create(model="fake-model", max_tokens=99, messages=turns, tools=[TOOL, TIME])
        assert second.content[-1].text == "It is warm." and second.stop_reason == "end_turn"  # type: ignore[union-attr]
        *_, said, result, failed, words, _ = prompt_of(engine).split("<|im_start|>")
        assert said.startswith("assistant\nOne moment.<tool_call>") and said.count("<tool_call>") == 2
        assert result == "tool\n19 degrees<|im_end|>\n" and failed == "tool\nError: no clock<|im_end|>\n"
        assert words == "user\nWell?<|im_end|>\n"

    engine = engine_over(f"Which city?</think>One moment.\n{CALL}\n{SECOND}", THINKING)
    talk(engine, script)


def test_arguments_are_streamed_as_they_are_generated() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        async with client.messages.stream(**ASKED, tools=[TOOL]) as stream:
            events = [event async for event in stream]
        pieces = [event.partial_json for event in events if event.type == "input_json"]
        assert len(pieces) > 5 and "".join(pieces) == '{"city": "Bonn"}'

    talk(engine_over(CALL), script)


@pytest.mark.parametrize(
    ("choice", "enforced", "calls"),
    [
        ({"type": "auto"}, False, 2),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, 1),
        ({"type": "any"}, True, 2),
        ({"type": "tool", "name": "get_weather"}, True, 1),
        ({"type": "none"}, False, 0),
    ],
    ids=str,
)
def test_tool_choices_are_honoured(choice: Any, enforced: bool, calls: int) -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        message = await client.messages.create(**ASKED, tools=[TOOL, TIME], tool_choice=choice)
        assert len([block for block in message.content if block.type == "tool_use"]) == calls
        assert (engine.requests[-1].params.grammar is not None) == enforced
        assert ("TOOLS" in prompt_of(engine)) == (choice["type"] != "none")

    engine = engine_over(CALL + SECOND)
    talk(engine, script)


def test_arguments_that_are_no_object_are_told_as_they_are() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        message = await client.messages.create(**ASKED, tools=[TOOL])
        (block,) = message.content
        assert block.type == "tool_use" and list(block.input) == ["INVALID_JSON"]

    talk(engine_over(CALL.replace('"Bonn"', "oops")), script)


def test_the_reason_tells_the_limit_the_context_and_the_stop_sequence_apart() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        limited = await client.messages.create(**{**ASKED, "max_tokens": 5})
        assert limited.stop_reason == "max_tokens" and limited.usage.output_tokens == 5
        stopped = await client.messages.create(**ASKED, stop_sequences=["xyz", "wor"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "wor")
        assert stopped.content[0].text == "Hello there, "  # type: ignore[union-attr]
        engine.endless = True
        full = await client.messages.create(**ASKED)
        assert full.stop_reason == "model_context_window_exceeded"

    engine = FakeEngine()
    talk(engine, script)


def test_thinking_can_be_switched_off_and_a_schema_hold_the_answer() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        await client.messages.create(**ASKED, thinking={"type": "disabled"})
        assert prompt_of(engine).endswith("<think></think>")
        await client.messages.create(**ASKED, thinking={"type": "adaptive"})
        assert prompt_of(engine).endswith("<think>\n")
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        await client.messages.create(**ASKED, output_config={"format": {"type": "json_schema", "schema": schema}})
        assert engine.requests[-1].params.grammar is not None

    engine = engine_over("</think>Well.", THINKING)
    talk(engine, script)


def test_sampling_settings_reach_the_engine() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        own: dict[str, Any] = {"min_p": 0.1, "seed": 7, "priority": 3, "cache_salt": "s"}
        sampling: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
        extra = {**sampling, **own}
        await client.messages.create(**{**ASKED, "max_tokens": 9}, extra_body=extra)
        request = engine.requests[-1]
        params = request.params
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 5, 0.1)
        assert (params.seed, params.max_tokens, request.priority, request.cache_salt) == (7, 9, 3, "s")
        await client.messages.create(**ASKED)
        assert engine.requests[-1].params.temperature == 1.0

    engine = FakeEngine()
    talk(engine, script)


def test_errors_are_the_clients_own_exceptions() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.messages.create(**{**ASKED, "model": "other"})
        body: Any = missing.value.body
        assert body["type"] == "error" and body["error"]["type"] == "not_found_error"
        assert body["request_id"] == missing.value.response.headers["request-id"]
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await client.messages.create(**{**ASKED, "max_tokens": 0})
        engine.refusal = QueueFull("too many requests wait", retry_after_s=7)
        with pytest.raises(anthropic.RateLimitError) as full:
            await client.messages.create(**ASKED, stream=True)
        assert full.value.response.headers["retry-after"] == "7"

    engine = FakeEngine()
    talk(engine, script)


def test_a_fault_in_mid_stream_is_an_error_event() -> None:
    async def script(client: anthropic.AsyncAnthropic) -> None:
        seen: list[str] = []

        async def read() -> None:
            async for event in await client.messages.create(**ASKED, stream=True):
                seen.append(event.type)

        with pytest.raises(anthropic.APIStatusError, match="the request ended with fault"):
            await read()
        assert seen[:3] == ["message_start", "content_block_start", "content_block_delta"]

    talk(FakeEngine(fault="fault"), script)


def test_keys_are_taken_as_the_client_sends_them() -> None:
    async def known(client: anthropic.AsyncAnthropic) -> None:
        assert (await client.messages.create(**ASKED)).content
        assert (await client.messages.count_tokens(model="fake-model", messages=HI)).input_tokens > 0

    async def unknown(client: anthropic.AsyncAnthropic) -> None:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await client.messages.create(**ASKED)
        body: Any = refused.value.body
        assert body["error"]["type"] == "authentication_error"

    talk(FakeEngine(), known, key="sk-test", api_keys=("sk-test",))
    talk(FakeEngine(), unknown, key="sk-wrong", api_keys=("sk-test",))


def test_cached_tokens_are_counted_apart() -> None:
    assert usage_object(CallUsage(10, 3, 4)) == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }
