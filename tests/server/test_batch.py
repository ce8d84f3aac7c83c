"""Batches over the fake engine: lines read and refused, answers in order, files that a kill left behind."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from api_calls import CHAT, COMPLETIONS, HI, post
from fake_engine import FakeEngine

from octavo.errors import EngineFault, InvalidRequest
from octavo.server.batch.answer_file import answer_file
from octavo.server.batch.lines import MAX_LINE_BYTES, URLS, read_lines
from octavo.server.batch.run import run_batch
from octavo.server.settings import ServerSettings


def line(custom_id="a", url=COMPLETIONS, **body):
    body = body or {"prompt": "x"}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode()


def run(path, lines, engine=None, window=4):
    """Answer `lines` into `path`; the counts, and the answers that are there then."""
    with answer_file(path) as answers:
        counts = asyncio.run(
            run_batch(
                engine or FakeEngine(),
                ServerSettings(),
                read_lines(io.BytesIO(b"\n".join(lines)), URLS),
                answers,
                window=window,
            )
        )
    return counts, read(path)


def read(path):
    return [json.loads(each) for each in path.read_bytes().splitlines()]


def test_each_line_is_answered_as_the_server_answers_it(tmp_path):
    bodies = {"one": (CHAT, {"messages": HI, "max_tokens": 4}), "two": (COMPLETIONS, {"prompt": ["x", "y"], "n": 2})}
    counts, answers = run(tmp_path / "out", [line(name, url, **body) for name, (url, body) in bodies.items()])
    assert (counts.answered, counts.failed, counts.kept) == (2, 0, 0)
    for answer, (name, (url, body)) in zip(answers, bodies.items(), strict=True):
        response = answer["response"]
        assert answer["custom_id"] == name and answer["error"] is None and answer["id"].startswith("batch_req_")
        assert response["status_code"] == 200 and response["request_id"].startswith("req-")
        served = post(url, body).json()
        for changing in ("id", "created"):
            assert response["body"].pop(changing) and served.pop(changing)
        assert response["body"] == served


def test_what_the_server_refuses_is_an_answer_with_its_status_and_body(tmp_path):
    bad = {"prompt": "x", "max_tokens": -1}
    counts, [answer] = run(tmp_path / "out", [line(**bad)])
    assert (counts.answered, counts.failed) == (0, 1)
    assert answer["response"]["status_code"] == 400 and answer["error"] is None
    assert answer["response"]["body"] == post(COMPLETIONS, bad).json()


@pytest.mark.parametrize(
    ("raw", "custom_id", "complaint"),
    [
        (b"nonsense", None, "line 1: it cannot be read as JSON"),
        (b"[1]", None, "it holds an array"),
        (b'{"custom_id": "a", "custom_id": "b"}', None, "appears twice"),
        (b'{"method": "POST"}', None, "custom_id is None; give a text"),
        (line(""), None, "custom_id is ''; give a text"),
        (line("a" * 513), None, "give a text of 1 to 512 characters"),
        (line("a", "/v1/images"), "a", "url is '/v1/images'; give one of /v1/chat/completions"),
        (b'{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}', "a", "method is 'GET'"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": 1}', "a", "body is 1"),
        (b'{"custom_id": "a", "method": "POST", "url": ["/v1/completions"], "body": {}}', "a", "url is a list"),
        (b'{"custom_id": "a", "methods": "POST"}', "a", "'methods' is not a field of a line"),
        (line("a", prompt="x", stream=True), "a", "body.stream is true"),
        (b"x" * (MAX_LINE_BYTES + 9), None, "it is longer than"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_line_that_cannot_be_used_is_an_error_with_its_number_and_the_next_one_is_answered(
    tmp_path, raw, custom_id, complaint
):
    counts, [bad, good] = run(tmp_path / "out", [raw, line("good")])
    assert (counts.answered, counts.failed) == (1, 1)
    assert bad["custom_id"] == custom_id and bad["response"] is None
    assert bad["error"]["code"] == "invalid_line" and bad["error"]["line"] == 1 and complaint in bad["error"]["message"]
    assert good["custom_id"] == "good" and good["response"]["status_code"] == 200


def test_a_custom_id_that_came_before_is_an_error_and_stays_one_when_resumed(tmp_path):
    lines = [line("a"), b"", line("a"), b"nonsense"]
    for kept in (0, 3):
        counts, answers = run(tmp_path / "out", lines)
        assert counts.kept == kept and len(answers) == 3
    assert [answer["custom_id"] for answer in answers] == ["a", "a", None]
    assert answers[1]["error"]["code"] == "duplicate_custom_id" and answers[1]["error"]["line"] == 3


def test_answers_come_in_the_order_of_the_lines_though_later_ones_end_first(tmp_path):
    lengths = [400, 3, 90, 1, 200, 2]
    lines = [line(f"n{length}", prompt="x", max_tokens=length) for length in lengths]
    _, answers = run(tmp_path / "out", lines, FakeEngine(endless=True), window=3)
    assert [answer["custom_id"] for answer in answers] == [f"n{length}" for length in lengths]
    assert [each["response"]["body"]["usage"]["completion_tokens"] for each in answers] == lengths


def test_no_more_than_the_window_is_asked_at_once(tmp_path):
    most = [0]

    class Watched(FakeEngine):
        async def run(self, requests):
            async for events in super().run(requests):
                most[0] = max(most[0], self.num_running)
                yield events

    run(tmp_path / "out", [line(str(n)) for n in range(12)], Watched(), window=3)
    assert most[0] == 3


@pytest.mark.parametrize("cut", [1, 30, -1], ids=["one byte", "in the middle", "without its newline"])
def test_a_last_line_cut_short_is_repaired_and_what_was_answered_is_kept_and_not_asked_again(tmp_path, cut):
    path = tmp_path / "out"
    lines = [line(name) for name in "abcd"]
    run(path, lines[:3])
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + third[:cut])
    engine = FakeEngine()
    counts, answers = run(path, lines, engine)
    kept = 3 if cut == -1 else 2
    assert (counts.kept, counts.answered, len(engine.requests)) == (kept, 4 - kept, 4 - kept)
    assert [answer["custom_id"] for answer in answers] == list("abcd")
    assert path.read_bytes().startswith(first + second)


def test_a_file_that_has_something_else_in_it_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"my notes\nmore")
    with pytest.raises(InvalidRequest, match="is not an answer of a batch"), answer_file(path):
        pass
    assert path.read_bytes() == b"my notes\nmore"


def test_a_file_is_written_by_one_batch_at_a_time(tmp_path):
    with (
        answer_file(tmp_path / "out"),
        pytest.raises(InvalidRequest, match="is being written by another batch"),
        answer_file(tmp_path / "out"),
    ):
        pass


def test_a_file_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match="cannot be opened"), answer_file(tmp_path / "nowhere" / "out"):
        pass


def test_an_engine_that_fails_ends_the_batch_and_its_lines_are_asked_again(tmp_path):
    path = tmp_path / "out"

    class Failing(FakeEngine):
        async def run(self, requests):
            if len(self.requests) == 2:
                self.state, self.reason = "failed", "it broke"
            async for events in super().run(requests):
                yield events

    lines = [line(name) for name in "abcd"]
    with pytest.raises(EngineFault, match="it broke"):
        run(path, lines, Failing(), window=1)
    assert [answer["custom_id"] for answer in read(path)] == ["a", "b"]
    counts, answers = run(path, lines)
    assert (counts.kept, counts.answered) == (2, 2) and [each["custom_id"] for each in answers] == list("abcd")


def test_a_fault_of_one_request_is_its_answer_and_the_others_go_on(tmp_path):
    counts, answers = run(tmp_path / "out", [line("a")], FakeEngine(fault="fault", fault_after=0))
    assert counts.failed == 1 and answers[0]["response"]["status_code"] == 500
    assert answers[0]["response"]["body"]["error"]["code"] == "engine_fault"
