"""Which requests a cell sends under each mix."""

from __future__ import annotations

import json

import pytest

from octavo.bench.load_connection import Address
from octavo.bench.load_endpoint import Endpoint
from octavo.bench.load_mix import Mix, Plan, make_requests, plan_cell, prompt_lengths
from octavo.bench.load_prompts import TokenIdPrompts
from octavo.errors import InvalidRequest


def mix(name: str, prompt_tokens: int = 512, max_tokens: int = 128, shared: int = 50, cancel: int = 25) -> Mix:
    return Mix.of(name, prompt_tokens, max_tokens, shared, cancel)


def test_a_plain_cell_repeats_one_length():
    assert plan_cell(mix("plain"), 1, 4, 8) == [Plan(512, 128)] * 8


@pytest.mark.parametrize(("percent", "tokens"), [(0, 0), (50, 256), (100, 512)])
def test_a_shared_prefix_is_a_part_of_the_prompt(percent, tokens):
    assert plan_cell(mix("shared-prefix", shared=percent), 1, 2, 3) == [Plan(512, 128, tokens)] * 3


def test_ragged_lengths_spread_from_an_eighth_to_the_whole_and_depend_on_the_seed():
    plans = plan_cell(mix("ragged"), 1, 8, 400)
    lengths = [each.prompt_tokens for each in plans]
    assert 64 <= min(lengths) < 80 and 440 < max(lengths) <= 512
    assert min(each.max_tokens for each in plans) >= 16
    assert plans == plan_cell(mix("ragged"), 1, 8, 400)
    assert plans != plan_cell(mix("ragged"), 2, 8, 400)


@pytest.mark.parametrize(
    ("percent", "num_requests", "expected"), [(25, 8, 2), (0, 8, 1), (1, 4, 1), (100, 4, 3), (50, 1, 0)]
)
def test_the_share_that_hangs_up_does_so_before_the_end(percent, num_requests, expected):
    plans = plan_cell(mix("cancel", cancel=percent), 7, 4, num_requests)
    cancelled = [each.cancel_after for each in plans if each.cancel_after is not None]
    assert len(cancelled) == expected
    assert all(1 <= each < 128 for each in cancelled)


def test_an_unknown_mix_is_refused_with_those_there_are():
    with pytest.raises(InvalidRequest, match="the mix is 'burst'; it is one of plain, shared-prefix, ragged, cancel"):
        mix("burst")


def test_prompt_lengths_are_all_that_the_cells_will_send():
    ragged = mix("ragged")
    found = prompt_lengths(ragged, 3, (1, 4), 2)
    assert found == sorted({each.prompt_tokens for n in (1, 4) for each in plan_cell(ragged, 3, n, n * 2)})


def test_rounds_send_other_prompts_of_the_same_lengths():
    endpoint, source = Endpoint(Address.of("localhost:1"), "m"), TokenIdPrompts(range(1000), "a test")
    plans = plan_cell(mix("ragged"), 3, 2, 4)
    first, second = (make_requests(plans, endpoint, source, name) for name in ("round 0", "round 1"))
    for one, other in zip(first, second, strict=True):
        mine, theirs = json.loads(one.body)["prompt"], json.loads(other.body)["prompt"]
        assert len(mine) == len(theirs) == one.plan.prompt_tokens
        assert mine != theirs
