"""SamplingParams: every value out of range is our one-line error, everything in range is kept as given."""

from __future__ import annotations

import dataclasses
import math

import pytest

from octavo.errors import InvalidRequest
from octavo.sampling_params import MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_LENGTH, MAX_STOP_STRINGS, SamplingParams

HUGE = 10**5000  # more digits than Python agrees to print
NOT_NUMBERS: list[object] = ["1", None, [], {}, True, False, math.nan, 1 + 0j]
REALS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
INTEGERS = ["top_k", "n"]


def refusal(**fields: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message and len(message) < 250
    return message


@pytest.mark.parametrize("name", REALS)
@pytest.mark.parametrize(
    "value",
    [*NOT_NUMBERS, math.inf, -math.inf, HUGE, -HUGE, 1e300, -1000],
    ids=lambda v: str(v)[:9] if v not in (HUGE, -HUGE) else "huge",
)
def test_a_real_setting_that_is_no_sane_number_is_refused_by_name(name: str, value: object) -> None:
    assert name in refusal(**{name: value})


@pytest.mark.parametrize("name", [*INTEGERS, "max_tokens", "logprobs", "seed"])
@pytest.mark.parametrize(
    "value",
    ["1", [], True, math.nan, math.inf, 8.0, 0.5, -(2**70), -HUGE],
    ids=lambda v: str(v)[:9] if v != -HUGE else "huge",
)
def test_a_whole_number_setting_takes_no_float_no_bool_no_text_and_nothing_far_below_zero(
    name: str, value: object
) -> None:
    assert name in refusal(**{name: value})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "0"),
        ({"max_tokens": -5}, "-5"),
        ({"temperature": -0.1}, "-0.1"),
        ({"temperature": 100.5}, "100.5"),
        ({"top_k": -1}, "-1"),
        ({"top_p": 0.0}, "above 0"),
        ({"top_p": 1.01}, "at most 1"),
        ({"min_p": -0.01}, "-0.01"),
        ({"min_p": 1.5}, "1.5"),
        ({"repetition_penalty": 0.0}, "0.01"),
        ({"logprobs": -1}, "-1"),
        ({"logprobs": MAX_LOGPROBS + 1}, str(MAX_LOGPROBS)),
        ({"logprobs": 1_000_000}, str(MAX_LOGPROBS)),
        ({"n": 0}, "0"),
        ({"n": 5_000_000}, str(MAX_CHOICES)),
        ({"n": HUGE}, "bits"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": HUGE}, "bits"),
        ({"stop": ""}, "non-empty"),
        ({"stop": ["a", ""]}, "non-empty"),
        ({"stop": [3]}, "3"),
        ({"stop": None}, "stop must be a list"),
        ({"stop": 5}, "stop must be a list"),
        ({"stop": b"ab"}, "97"),
        ({"stop": ["x"] * (MAX_STOP_STRINGS + 1)}, str(MAX_STOP_STRINGS)),
        ({"stop": "x" * (MAX_STOP_LENGTH + 1)}, str(MAX_STOP_LENGTH)),
        ({"stop": [["a\nb"] * 10**6]}, "a list"),
        ({"stop_token_ids": 7}, "stop_token_ids must be a list"),
        ({"stop_token_ids": "12"}, "'1'"),
        ({"stop_token_ids": [-1]}, "-1"),
        ({"stop_token_ids": [1.0]}, "1.0"),
        ({"stop_token_ids": [True]}, "True"),
        ({"stop_token_ids": [[HUGE]]}, "a list"),
        ({"logit_bias": [(1, 2.0)]}, "logit_bias"),
        ({"logit_bias": None}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "-1"),
        ({"logit_bias": {"5": 1.0}}, "'5'"),
        ({"logit_bias": {1.5: 1.0}}, "1.5"),
        ({"logit_bias": {True: 1.0}}, "True"),
        ({"logit_bias": {3: math.nan}}, "logit_bias[3]"),
        ({"logit_bias": {3: -math.inf}}, "logit_bias[3]"),
        ({"logit_bias": {3: "1"}}, "logit_bias[3]"),
        ({"logit_bias": {3: 1e5}}, "10000"),
        ({"logit_bias": {HUGE: HUGE}}, "bits"),
        ({"ignore_eos": "false"}, "'false'"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_a_bad_value_is_refused_with_the_value_or_the_limit_named(fields: dict[str, object], named: str) -> None:
    message = refusal(**fields)
    assert named in message
    assert next(iter(fields)).split("_")[0] in message


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 1},
        {"max_tokens": 10**30},
        {"max_tokens": None},
        {"temperature": 0},
        {"temperature": -0.0},
        {"temperature": 5e-324},
        {"temperature": 100},
        {"top_k": 0},
        {"top_k": 10**30},
        {"top_p": 5e-324},
        {"top_p": 1},
        {"min_p": 1.0},
        {"repetition_penalty": 0.01},
        {"presence_penalty": -2},
        {"logprobs": 0},
        {"logprobs": MAX_LOGPROBS},
        {"n": MAX_CHOICES},
        {"seed": -(2**63)},
        {"seed": 2**64 - 1},
        {"logit_bias": {0: -100, 5: 100.0}},
    ],
    ids=str,
)
def test_values_at_the_limits_are_kept_as_given(fields: dict[str, object]) -> None:
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    for name, value in fields.items():
        assert getattr(params, name) == value


def test_the_default_is_greedy_and_filters_nothing() -> None:
    params = SamplingParams()
    assert params.greedy and params.max_tokens is None and params.stop == () and params.logit_bias == {}


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=-0.0).greedy
    assert not SamplingParams(temperature=5e-324).greedy


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "bc"]).stop == ("a", "bc")


def test_settings_do_not_change_with_the_objects_they_were_made_from() -> None:
    bias, stops, ids = {1: 1.0}, ["a"], [2]
    params = SamplingParams(logit_bias=bias, stop=stops, stop_token_ids=ids)
    bias[2] = 2.0
    stops.append("b")
    ids.append(3)
    assert params.logit_bias == {1: 1.0} and params.stop == ("a",) and params.stop_token_ids == (2,)


def test_settings_cannot_be_reassigned() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
@pytest.mark.parametrize("token_id", [100, 2**40, HUGE], ids=["first outside", "wide", "huge"])
def test_an_id_beyond_the_vocabulary_is_refused_by_name(name: str, token_id: int) -> None:
    value = {token_id: 1.0} if name == "logit_bias" else [token_id]
    params = SamplingParams(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=rf"{name} names token id .*0 to 99"):
        params.check_vocabulary(100)


def test_the_last_id_of_the_vocabulary_is_accepted() -> None:
    SamplingParams(logit_bias={99: 1.0, 0: 1.0}, stop_token_ids=[99, 0]).check_vocabulary(100)
