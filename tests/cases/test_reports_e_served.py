"""Reports of kind e, continuous batching, replayed by clients of a real server: who leaves costs the others nothing."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.cases.scripted_model import CONTEXT, LETTERS
from tests.cases.served import CHAT, COMPLETIONS, Served, events_of, text_of, user
from tests.tiny_models import VOCAB_SIZE

AFTER_A = LETTERS[1:]


def fresh_ids(length: int, rng: random.Random) -> list[int]:
    """A prompt that no other begins like."""
    return rng.choices(range(3, VOCAB_SIZE), k=length)


def leave(served: Served, fields: dict[str, Any], after_s: float) -> None:
    """Send a request, streamed or not, and close its connection `after_s` seconds later."""
    headers = {"host": "x", "content-type": "application/json"}
    with httpx.Client(base_url=served.server.url, timeout=httpx.Timeout(20, read=after_s), trust_env=False) as client:
        try:
            with client.stream("POST", COMPLETIONS, json=fields, headers=headers) as response:
                end = time.monotonic() + after_s
                for _ in response.iter_raw():
                    if time.monotonic() >= end:
                        return
        except httpx.ReadTimeout:
            return
    raise AssertionError("it was answered before the client could leave")


def all_free(served: Served) -> list[dict[str, int]]:
    """The blocks once cached prefixes are forgotten, which must be all that there are."""
    served.client.post("/v1/cache/reset")
    served.settle()
    found = served.blocks()
    assert all(group["free"] == group["total"] > 0 for group in found)
    return found


def left(served: Served) -> float:
    """How many requests the server noted as left by their clients."""
    page = served.client.get("/metrics").text
    return sum(float(each) for each in re.findall(r'^octavo_requests_total\{.*"disconnected"\} (\S+)', page, re.M))


# -- R031 -----------------------------------------------------------------------------------------------------------


def test_r031_two_hundred_calls_of_every_kind_of_end_leave_every_block_free_or_cached(served: Served) -> None:
    rng = random.Random(31)
    at_start, gone_before = all_free(served), left(served)
    ends: Counter[str] = Counter()

    def call(kind: str, seed: int) -> None:
        mine = random.Random(seed)
        if kind == "stop":
            assert text_of(served.whole(CHAT, {"messages": user("a"), "temperature": 0})["choices"][0]) == AFTER_A
        elif kind == "length":
            prompt, limit = fresh_ids(mine.randint(1, 90), mine), mine.randint(1, 20)
            answer = served.whole(COMPLETIONS, {"prompt": prompt, "max_tokens": limit, "n": 2, "ignore_eos": True})
            assert answer["usage"]["completion_tokens"] == 2 * limit
        elif kind == "stop string":
            choice = served.whole(CHAT, {"messages": user("a"), "stop": "klm", "temperature": 0})["choices"][0]
            assert (text_of(choice), choice["finish_reason"]) == ("bcdefghij", "stop")
        elif kind == "refused":
            bad: dict[str, Any] = mine.choice(
                [{"prompt": [VOCAB_SIZE]}, {"prompt": [1] * CONTEXT}, {"prompt": "a", "n": 0}]
            )
            served.refused(COMPLETIONS, bad)
        elif kind == "leaves in decode":
            fields = {"prompt": "0", "max_tokens": 4000, "stream": True, "temperature": 0}
            with served.client.stream("POST", COMPLETIONS, json=fields) as response:
                for _, _ in zip(range(mine.randint(1, 9)), events_of(response), strict=False):
                    pass
        else:  # in prefill, or still in the queue
            length = 4300 if kind == "leaves in prefill" else 40
            fields = {"prompt": fresh_ids(length, mine), "max_tokens": 100, "n": 1 if length == 4300 else 8}
            leave(served, {**fields, "ignore_eos": True}, mine.uniform(0.001, 0.03))
        ends[kind] += 1

    kinds = ["stop", "length", "stop string", "refused", "leaves in decode", "leaves in prefill", "leaves in the queue"]
    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(call, rng.choice(kinds), number) for number in range(200)]:
            each.result()
    assert ends.total() == 200 and set(ends) == set(kinds)
    expected = gone_before + sum(ends[kind] for kind in kinds if kind.startswith("leaves"))
    served.until(lambda: left(served) == expected)
    served.settle()
    served.until_idle()
    assert [group["free"] + group["cached"] for group in served.blocks()] == [group["free"] for group in at_start]
    assert all_free(served) == at_start


# -- R032 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("when", ["prefill", "decode"])
def test_r032_forty_clients_that_close_their_sockets_stop_their_work_and_delay_nobody(
    served: Served, when: str, stream: bool
) -> None:
    """Ten at a time where four can run, so that the others of each ten leave the queue."""
    rng = random.Random(32)
    generated, gone = served.counter("octavo_generation_tokens_total"), left(served)
    length, after_s = (4300, 0.03) if when == "prefill" else (40, 0.2)
    bodies = [
        {"prompt": fresh_ids(length, rng), "max_tokens": CONTEXT - length, "ignore_eos": True, "stream": stream}
        for _ in range(40)
    ]
    with ThreadPoolExecutor(10) as threads:
        for each in [threads.submit(leave, served, body, after_s) for body in bodies]:
            each.result()
    begun = time.monotonic()
    answer = served.whole(COMPLETIONS, {"prompt": "a", "temperature": 0})
    assert answer["choices"][0]["text"] == AFTER_A
    assert time.monotonic() - begun < 2.0  # it waited for no more than the chunk that was under way
    served.until(lambda: left(served) == gone + 40)
    served.settle()
    served.until_idle()
    assert served.counter("octavo_generation_tokens_total") - generated < 0.1 * 40 * (CONTEXT - length)
