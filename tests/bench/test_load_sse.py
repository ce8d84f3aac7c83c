"""Server-sent events in any slicing, and what counts as output in a completion chunk."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.load_sse import MAX_EVENT, Answer, EventSplitter, error_message

STREAM = b'data: {"a":1}\n\n: a comment\n\nevent: x\ndata: two\ndata: lines\n\ndata:bare\n\nid: 4\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a":1}', b"two\nlines", b"bare", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_events_are_the_same_however_the_bytes_are_cut(cuts, crlf):
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    at = [0, *sorted(cuts), len(stream)]
    splitter, found = EventSplitter(), []
    for start, stop in pairwise(at):
        found += splitter.feed(stream[start:stop])
    assert found == EVENTS


def test_an_event_without_end_is_an_error_before_it_fills_the_memory():
    splitter = EventSplitter()
    splitter.feed(b"data: ")
    with pytest.raises(ValueError, match=str(MAX_EVENT)):
        splitter.feed(b"x" * MAX_EVENT)


def answer(*chunks: object) -> Answer:
    found = Answer()
    for now, chunk in enumerate(chunks):
        found.take(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode(), float(now))
    return found


def text(content: str, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": content, "finish_reason": None, **more}]}


def delta(**content: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": None}]}


def test_role_closing_and_usage_chunks_are_no_output():
    found = answer(
        delta(role="assistant", content=""),
        delta(content="a"),
        delta(content="b"),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
        b"[DONE]",
    )
    assert found.arrivals == [1.0, 2.0]
    assert (found.prompt_tokens, found.completion_tokens, found.finish_reason) == (5, 2, "stop")
    assert found.done and found.error is None


@pytest.mark.parametrize(
    "chunk",
    [text("a"), delta(reasoning_content="hm"), delta(tool_calls=[{"index": 0}]), text("", token_ids=[3])],
    ids=["text", "reasoning", "tool call", "token without text"],
)
def test_output_of_any_kind_is_an_arrival(chunk):
    assert answer(chunk).arrivals == [0.0]


def test_a_chunk_says_by_token_ids_or_logprobs_how_many_tokens_it_carries_or_nothing():
    found = answer(
        text("ab", token_ids=[1, 2]),
        text("abc", logprobs={"tokens": ["a", "b", "c"]}),
        {"choices": [{"index": 0, "delta": {"content": "ab"}, "logprobs": {"content": [{}, {}]}}]},
        text("who knows", logprobs=None),
    )
    assert found.chunk_tokens == [2, 3, 2, 0]


@pytest.mark.parametrize(
    ("event", "fragment"),
    [
        (b"{", "no JSON"),
        (b"[1]", "no JSON object"),
        ({"error": {"message": "out of\nmemory"}}, "the stream broke off: out of memory"),
        ({"error": "plain"}, "plain"),
        ({"choices": [3]}, "a choice is no JSON object"),
    ],
    ids=str,
)
def test_what_is_no_completion_chunk_is_told(event, fragment):
    assert fragment in (answer(event).error or "")


def test_a_null_error_is_none():
    assert answer({**text("a"), "error": None}).error is None


@pytest.mark.parametrize(
    "body", [{"error": {"message": "m"}}, {"error": "m"}, {"message": "m"}, {"error": {"message": " m \n"}}], ids=str
)
def test_error_bodies_of_several_shapes_are_read(body):
    assert error_message(body) == "m"
