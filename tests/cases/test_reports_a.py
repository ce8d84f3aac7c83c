"""Reports of kind a, streams of text, replayed by clients: nothing is cut, doubled, leaked or left without an end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cases.scripted_model import CONTEXT, LETTERS, byte_ids
from tests.cases.served import CHAT, COMPLETIONS, Served, deltas_of, text_of, user
from tests.conftest import weights_path
from tests.server.server_process import octavo_serve

AFTER_A = LETTERS[1:]


def both(served: Served, path: str, fields: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The deltas of the only choice of a request, and the choice when it is not streamed; they must say the same."""
    whole = served.whole(path, fields)["choices"][0]
    chunks = served.chunks(path, fields)
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] == whole["finish_reason"]
    deltas = deltas_of(chunks)
    assert "".join(deltas) == text_of(whole)
    return deltas, whole


# -- R001: stop strings of several tokens ---------------------------------------------------------------------------


def test_r001_no_delta_shows_any_part_of_a_stop_string_wherever_it_is_cut_from_the_answer(served: Served) -> None:
    stops = [AFTER_A[at : at + size] for size in (1, 2, 4, 9, 20) for at in range(len(AFTER_A) - size + 1)]

    def ask(stop: str) -> None:
        deltas, choice = both(served, COMPLETIONS, {"prompt": "a", "temperature": 0, "stop": stop})
        assert "".join(deltas) == AFTER_A[: AFTER_A.index(stop)]
        assert choice["finish_reason"] == "stop"

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, stops))


@pytest.mark.parametrize("stop", [["efg", "efghi"], ["efghi", "efg"], ["efgX", "efghi", "zz"]])
def test_r001_of_two_stops_with_one_beginning_the_first_that_is_complete_cuts(served: Served, stop: list[str]) -> None:
    _, choice = both(served, COMPLETIONS, {"prompt": "a", "temperature": 0, "stop": stop})
    assert (choice["text"], choice["finish_reason"]) == ("bcd", "stop")


def test_r001_text_that_only_looked_like_a_stop_is_released_as_soon_as_it_cannot_be_one(served: Served) -> None:
    fields = {"prompt": "a", "temperature": 0, "stop": ["efghX", "z!"], "logprobs": 0}
    chunks = served.chunks(COMPLETIONS, fields)
    held = 0
    for chunk in chunks:
        for choice in chunk["choices"]:
            written = "".join(choice["logprobs"]["tokens"]).removesuffix("<|im_end|>")
            held += len(written) - len(choice["text"])
            assert 0 <= held <= 4  # never more than can still begin a stop string
    assert held == 0
    assert "".join(deltas_of(chunks)) == AFTER_A


# -- R003: characters of many tokens --------------------------------------------------------------------------------


def test_r003_emoji_and_korean_streamed_at_once_are_whole_characters_as_alone(served: Served) -> None:
    def stream(character: str) -> list[str]:
        return deltas_of(served.chunks(CHAT, {"messages": user(character), "max_tokens": 60, "temperature": 0}))

    alone = {character: stream(character) for character in ("🚀", "안")}
    for character, count in (("🚀", 15), ("안", 20)):
        assert "".join(alone[character]) == character * count
    together = served.at_once(*(lambda each=each: stream(each) for each in ("🚀", "안") * 3))
    for each, deltas in zip(("🚀", "안") * 3, together, strict=True):
        assert "".join(deltas) == "".join(alone[each])
        assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6, 7])
def test_r003_a_character_that_the_limit_cuts_is_told_once_at_the_end(served: Served, max_tokens: int) -> None:
    fields = {"messages": user("🚀"), "max_tokens": max_tokens, "temperature": 0}
    deltas, choice = both(served, CHAT, fields)
    assert choice["finish_reason"] == "length"
    assert "".join(deltas) == "🚀" * (max_tokens // 4) + "\ufffd"
    assert not any("\ufffd" in delta for delta in deltas if delta != deltas[-1] and delta != deltas[-2])


@pytest.mark.parametrize("byte", [0xFF, 0xF0, 0x80, 0xC3])
def test_r003_bytes_that_are_no_utf8_harm_nobody(served: Served, byte: int) -> None:
    [token_id] = byte_ids(bytes([byte]))
    fields = {"messages": user("x"), "max_tokens": 9, "temperature": 0, "logit_bias": {str(token_id): 10_000}}
    deltas, choice = both(served, CHAT, {**fields, "logprobs": True})
    assert set("".join(deltas)) == {"\ufffd"} and choice["finish_reason"] == "length"
    assert [entry["bytes"] for entry in choice["logprobs"]["content"]] == [[byte]] * 9
    assert served.whole(COMPLETIONS, {"prompt": "a", "temperature": 0})["choices"][0]["text"] == AFTER_A


@pytest.mark.weights
@pytest.mark.nightly
def test_r003_a_real_model_streams_emoji_and_korean_at_once_as_it_does_alone() -> None:
    questions = [
        "Repeat exactly, and write nothing else: 🙂🚀🇰🇷👩‍👩‍👧🦙",
        "다음 문장을 그대로 반복해: 안녕하세요, 만나서 반갑습니다.",
    ]
    with octavo_serve("-m", weights_path("qwen05")) as server, server.client() as client:
        server.wait_until_ready()
        real = Served(server, client)

        def stream(question: str) -> list[str]:
            return deltas_of(real.chunks(CHAT, {"messages": user(question), "max_tokens": 16, "temperature": 0}))

        for question, deltas in zip(
            questions, real.at_once(*(lambda each=each: stream(each) for each in questions)), strict=True
        ):
            fields = {"messages": user(question), "max_tokens": 16, "temperature": 0, "logprobs": True}
            alone = real.whole(CHAT, fields)["choices"][0]
            raw = b"".join(bytes(entry["bytes"]) for entry in alone["logprobs"]["content"])
            text = raw.decode(errors="replace").removesuffix("<|im_end|>")
            assert "".join(deltas) == text_of(alone) == text
            assert any(ord(character) > 0x1000 for character in text)
            assert not any("\ufffd" in delta for delta in deltas[:-2])


# -- R005: how streams end ------------------------------------------------------------------------------------------

LETTER_H = byte_ids("h")[0]
ENDINGS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "end of turn": (CHAT, {"messages": user("a")}, AFTER_A, "stop"),
    "end of text": (COMPLETIONS, {"prompt": "a"}, AFTER_A, "stop"),
    "stop string": (CHAT, {"messages": user("a"), "stop": "hij"}, "bcdefg", "stop"),
    "stop id": (CHAT, {"messages": user("a"), "stop_token_ids": [LETTER_H]}, "bcdefg", "stop"),
    "max_tokens": (CHAT, {"messages": user("a"), "max_tokens": 6}, "bcdefg", "length"),
    "end on the last token": (CHAT, {"messages": user("a"), "max_tokens": 26}, AFTER_A, "stop"),
    "context full": (COMPLETIONS, {"prompt": byte_ids("0") * (CONTEXT - 5)}, "00000", "length"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_r005_every_way_to_end_is_told_once_and_every_other_chunk_says_null(served: Served, ending: str) -> None:
    path, fields, text, reason = ENDINGS[ending]
    deltas, choice = both(served, path, {**fields, "temperature": 0})
    assert ("".join(deltas), choice["finish_reason"]) == (text, reason)
    *chunks, usage = served.chunks(path, {**fields, "temperature": 0, "stream_options": {"include_usage": True}})
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons[-1] == reason and set(reasons[:-1]) <= {None}
    assert usage["choices"] == [] and all(chunk["usage"] is None for chunk in chunks)
    told = served.whole(path, {**fields, "temperature": 0})["usage"]
    assert {name: usage["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        name: told[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
