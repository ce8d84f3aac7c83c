"""Streams: deltas that join to the whole answer, one end for each, and what happens when the reader or the engine does
not do its part.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from api_calls import CHAT, COMPLETIONS, HI, app_over, chat, events_of, post, reasons_of, streamed, texts_of, whole
from asgi_calls import JSON, call, fake_app
from fake_engine import FakeEngine, byte_tokenizer

from octavo.engine.events import StepEvent
from octavo.errors import EngineFault, QueueFull
from octavo.outputs import TextDelta
from octavo.sampling_params import SamplingParams
from octavo.server.answer_frame import AnswerFrame
from octavo.server.chat import ChatAnswer
from octavo.server.generation import ChoiceDelta, Generation, Prompt
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState
from octavo.server.streaming import GenerationResponse

REPLY = 'Grüße 🚀🚀 "quoted" \\ \u2028 안녕\n\n<|x|>'


@dataclass
class Reader:
    """A client at the other end of an ASGI application, under a test's control."""

    sent: list[Any] = field(default_factory=list)
    readable: asyncio.Event = field(default_factory=asyncio.Event)  # cleared: sends do not return
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    body: bytes | None = b""

    def __post_init__(self) -> None:
        self.readable.set()

    async def receive(self) -> Any:
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.readable.wait()
        self.sent.append(message)

    def call(self, engine: FakeEngine, path: str, fields: dict[str, Any], **settings: Any) -> asyncio.Task[None]:
        """Send a request; the task ends with the application's answer."""
        self.body = json.dumps(fields).encode()
        headers = [(name.encode(), value.encode()) for name, value in [JSON, ("content-length", str(len(self.body)))]]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
            "scheme": "http",
            "http_version": "1.1",
        }
        app = app_over(engine, **settings)
        return asyncio.create_task(app(scope, self.receive, self.send))

    @property
    def text(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.sent)

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def bodies() -> list[tuple[str, dict[str, Any]]]:
    return [
        (CHAT, {"messages": HI}),
        (CHAT, {"messages": HI, "n": 3, "max_tokens": 5}),
        (CHAT, {"messages": HI, "stop": "quot"}),
        (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 1}),
        (COMPLETIONS, {"prompt": "x", "echo": True}),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "max_tokens": 9}),
    ]


@pytest.mark.parametrize(("path", "body"), bodies(), ids=str)
def test_joined_deltas_are_the_whole_answer_and_each_choice_ends_once(path: str, body: dict[str, Any]) -> None:
    answer = whole(path, body, FakeEngine(reply=REPLY))
    chunks = streamed(path, body, FakeEngine(reply=REPLY))
    expected = {
        each["index"]: each["text"] if "text" in each else each["message"]["content"] for each in answer["choices"]
    }
    assert texts_of(chunks) == expected
    assert reasons_of(chunks) == {each["index"]: [each["finish_reason"]] for each in answer["choices"]}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("\ufffd" not in text for text in texts_of(streamed(path, {**body, "max_tokens": None})).values())


def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason_alone() -> None:
    chunks = streamed(CHAT, {"messages": HI})
    first, last = chunks[0]["choices"][0], chunks[-1]["choices"][0]
    assert first == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert last == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all(chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HI, "n": 2}), (COMPLETIONS, {"prompt": ["x", "y"]})])
def test_usage_comes_last_without_choices_if_it_was_asked_for(path: str, body: dict[str, Any]) -> None:
    *chunks, last = streamed(path, {**body, "stream_options": {"include_usage": True}})
    assert last["choices"] == [] and last["usage"] == whole(path, body)["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)
    without = streamed(path, {**body, "stream_options": {"include_usage": False}})
    assert len(without) == len(chunks)


def test_cached_prompt_tokens_are_told() -> None:
    @dataclass
    class Cached(FakeEngine):
        def _script(self, request: Any) -> list[StepEvent]:
            events = super()._script(request)
            events[0] = StepEvent(events[0].delta, num_cached_tokens=16 if request.choice == 0 else 17)
            return events

    for path, body, cached in ((CHAT, {"messages": HI, "n": 2}, 16), (COMPLETIONS, {"prompt": ["x", "y"]}, 32)):
        assert whole(path, body, Cached())["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}


def test_tokens_that_came_together_are_one_chunk() -> None:
    """A reader that was slow gets longer lists from the engine, and is not told more than it has to be."""

    @dataclass
    class Together(FakeEngine):
        async def run(self, requests: Any) -> AsyncGenerator[list[StepEvent]]:
            gathered = [event async for events in super().run(requests) for event in events]
            yield gathered

    chunks = streamed(CHAT, {"messages": HI, "n": 2}, Together())
    assert len(chunks) == 2 * 3  # role, content, reason
    assert texts_of(chunks) == dict.fromkeys((0, 1), "Hello there, world.")


def test_no_content_at_all_is_a_stream_too() -> None:
    chunks = streamed(CHAT, {"messages": HI, "stop": "H"})
    assert texts_of(chunks) == {0: ""} and reasons_of(chunks) == {0: ["stop"]}


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "x"})])
@pytest.mark.parametrize(("fault", "code"), [("request_timeout", "request_timeout"), ("fault", "engine_fault")])
def test_an_error_in_mid_stream_is_the_last_event(path: str, body: dict[str, Any], fault: Any, code: str) -> None:
    answer = post(path, {**body, "stream": True}, FakeEngine(fault=fault, fault_after=3))
    assert answer.status == 200
    *chunks, last = events_of(answer.body)
    assert texts_of(chunks) == {0: "Hel"} and reasons_of(chunks) == {}
    assert set(last) == {"error"} and last["error"]["code"] == code and fault in last["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("shut_down", "shutting_down"),
        ("request_timeout", "request_timeout"),
        ("engine_died", "engine_died"),
        ("slow_reader", "slow_reader"),
        ("queue_timeout", "queue_timeout"),
        ("fault", "server_error"),
        ("invalid_grammar", "client_error"),
    ],
)
def test_the_log_and_the_metrics_have_the_outcome_that_the_client_was_told(
    stream: bool, path: str, fault: Any, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="octavo.access")
    body = {
        CHAT: {"messages": HI},
        COMPLETIONS: {"prompt": "x"},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": HI, "max_tokens": 9},
    }[path]
    app = fake_app(FakeEngine(fault=fault, fault_after=3))
    call(app, "POST", path, [JSON], json.dumps({**body, "stream": stream}).encode())
    (line,) = [record.args for record in caplog.records if record.name == "octavo.access"]
    assert isinstance(line, dict) and line["outcome"] == outcome and (line["status"] == 200) == stream
    page = call(app, "GET", "/metrics").body.decode()
    assert f'octavo_requests_total{{endpoint="{path}",outcome="{outcome}"}} 1.0' in page
    assert f'endpoint="{path}",outcome="ok"' not in page


def test_an_engine_that_dies_in_mid_stream_is_an_error_event_too() -> None:
    @dataclass
    class Dying(FakeEngine):
        async def run(self, requests: Any) -> AsyncGenerator[list[StepEvent]]:
            async for events in super().run(requests):
                yield events
                raise EngineFault("the engine has died: out of memory")

    answer = chat(Dying(), stream=True)
    assert events_of(answer.body)[-1]["error"]["message"] == "the engine has died: out of memory"


def test_a_fault_before_the_first_event_is_a_plain_error_even_for_a_stream() -> None:
    answer = chat(FakeEngine(fault="queue_timeout", fault_after=0), stream=True)
    assert answer.status == 503 and answer.error["code"] == "queue_timeout"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens_before", [0, 3])
def test_a_client_that_leaves_ends_its_requests(
    stream: bool, tokens_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        engine = FakeEngine(endless=True, step_s=0.002 if tokens_before else 60)
        reader = Reader()
        call = reader.call(engine, CHAT, {"messages": HI, "stream": stream, "n": 2})
        await until(lambda: engine.num_running == 2)
        if stream and tokens_before:
            await until(lambda: len(reader.sent) > tokens_before)
        reader.gone.set()
        async with asyncio.timeout(1):
            await call
        assert sorted(engine.aborted) == sorted(each.request_id for each in engine.requests)
        assert engine.num_running == 0 and not reader.complete

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert not caplog.records


def test_a_stream_with_nothing_to_say_sends_comments() -> None:
    async def scenario() -> None:
        engine = FakeEngine(step_s=0.12)
        reader = Reader()
        fields = {"messages": HI, "stream": True, "max_tokens": 2}
        await reader.call(engine, CHAT, fields, keep_alive_s=0.05)
        assert reader.sent[0]["status"] == 200 and reader.sent[1]["body"] == b": keep-alive\n\n"
        assert reader.text.count(b": keep-alive\n\n") >= 3
        *chunks, done = events_of(reader.text)
        assert texts_of(chunks) == {0: "He"} and done == "[DONE]"

    asyncio.run(scenario())


def test_a_refusal_that_comes_after_the_first_comment_is_an_error_event() -> None:
    @dataclass
    class SlowToRefuse(FakeEngine):
        async def run(self, requests: Any) -> AsyncGenerator[list[StepEvent]]:
            await asyncio.sleep(0.1)
            raise QueueFull("too many wait")
            yield []

    async def scenario() -> None:
        reader = Reader()
        await reader.call(SlowToRefuse(), CHAT, {"messages": HI, "stream": True}, keep_alive_s=0.03)
        assert reader.sent[0]["status"] == 200 and reader.complete
        assert [each["error"]["code"] for each in events_of(reader.text)] == ["queue_full"]

    asyncio.run(scenario())


def generation_and_answer(engine: FakeEngine, model: str = "m") -> tuple[Generation, ChatAnswer]:
    generation = Generation(ServerState(engine, ServerSettings()), [Prompt((1, 2))], SamplingParams(), kind="chatcmpl")
    frame = AnswerFrame(generation, model, "fp", whole_kind="whole", chunk_kind="chunk", with_usage=False)
    return generation, ChatAnswer(frame, byte_tokenizer(), with_logprobs=False)


def response_over(engine: FakeEngine, **times: float) -> GenerationResponse:
    return GenerationResponse(*generation_and_answer(engine), stream=True, **{"keep_alive_s": 15.0, **times})


@pytest.mark.parametrize("step_s", [0.001, 60], ids=["tokens", "comments"])
def test_a_client_that_reads_nothing_is_cut_off(step_s: float, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        engine = FakeEngine(endless=True, step_s=step_s)
        reader = Reader(body=None)
        reader.readable.clear()
        async with asyncio.timeout(2):
            await response_over(engine, stall_s=0.05, keep_alive_s=0.02)({}, reader.receive, reader.send)
        assert engine.num_running == 0 and len(engine.aborted) == 1 and not reader.sent

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_client_that_reads_slowly_gets_everything() -> None:
    async def scenario() -> None:
        reader = Reader(body=None)
        run = asyncio.create_task(
            response_over(FakeEngine(), stall_s=0.2, keep_alive_s=0.01)({}, reader.receive, reader.send)
        )
        for _ in range(5):
            reader.readable.clear()
            await asyncio.sleep(0.05)
            reader.readable.set()
            await asyncio.sleep(0)
        await run
        assert texts_of(events_of(reader.text)[:-1]) == {0: "Hello there, world."} and reader.complete

    asyncio.run(scenario())


def test_a_server_that_stops_a_stream_leaves_nothing_running() -> None:
    async def scenario() -> None:
        engine = FakeEngine(endless=True, step_s=0.001)
        reader = Reader()
        call = reader.call(engine, CHAT, {"messages": HI, "stream": True})
        await until(lambda: len(reader.sent) > 2)
        call.cancel()
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError)
        assert engine.num_running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_an_unexpected_exception_leaves_the_application_and_ends_the_requests() -> None:
    @dataclass
    class Broken(FakeEngine):
        async def run(self, requests: Any) -> AsyncGenerator[list[StepEvent]]:
            async for events in super().run(requests):
                yield events
                yield [StepEvent(TextDelta("a request of somebody else", 0, "x", (1,)))]

    async def scenario() -> None:
        engine = Broken()
        reader = Reader()
        results: list[Any] = await asyncio.gather(
            reader.call(engine, CHAT, {"messages": HI, "stream": True}), return_exceptions=True
        )
        assert isinstance(results[0], KeyError) and engine.num_running == 0 and not reader.complete

    asyncio.run(scenario())


def test_chunks_are_ascii_so_that_no_reader_can_cut_a_character_or_a_line() -> None:
    assert chat(FakeEngine(reply=REPLY), stream=True).body.isascii()
    _, answer = generation_and_answer(FakeEngine(), model='na"me')
    assert texts_of(events_of(answer.chunks([ChoiceDelta(0, REPLY)]))) == {0: REPLY}
