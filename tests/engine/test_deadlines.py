"""Deadlines of requests: told once, in order, and never for one that has ended."""

from __future__ import annotations

from octavo.engine.deadlines import Deadlines
from octavo.request import Request
from octavo.sampling_params import SamplingParams


def request(name: str, queue: float | None = None, whole: float | None = None) -> Request:
    return Request(name, (1,), SamplingParams(), 0, queue_timeout_s=queue, timeout_s=whole)


def test_each_deadline_is_told_once_when_it_is_over_the_earliest_first() -> None:
    deadlines = Deadlines()
    deadlines.add(request("a", queue=5, whole=20), now=100)
    deadlines.add(request("b", whole=3), now=101)
    deadlines.add(request("c"), now=101)
    told = [(now, [(d.request_id, d.kind) for d in deadlines.over(now)]) for now in (103.9, 104, 105, 106, 120, 999)]
    assert told == [
        (103.9, []),
        (104, [("b", "request_timeout")]),
        (105, [("a", "queue_timeout")]),
        (106, []),
        (120, [("a", "request_timeout")]),
        (999, []),
    ]


def test_a_request_that_ended_has_none_even_where_its_id_is_used_again() -> None:
    deadlines = Deadlines()
    deadlines.add(request("a", whole=5), now=0)
    deadlines.remove("a")
    deadlines.remove("a")
    deadlines.add(request("a", whole=50), now=1)
    assert deadlines.over(40) == []
    assert [d.at for d in deadlines.over(60)] == [51]


def test_the_text_names_the_limit_and_the_remedy_on_one_line() -> None:
    deadlines = Deadlines()
    deadlines.add(request("a", queue=2.5, whole=60), now=0)
    texts = [deadline.text for deadline in deadlines.over(100)]
    assert "2.5 s" in texts[0] and "queue timeout" in texts[0]
    assert "60 s" in texts[1] and "request timeout" in texts[1]
    assert not any("\n" in text for text in texts)
