"""`suffix` of /v1/completions: the prompt that fills in the middle, and models that cannot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from api_calls import complete
from asgi_calls import fake_app, get
from fake_engine import INFO, FakeEngine, byte_tokenizer

from octavo.server.fill_in import required_fill_in
from octavo.server.prompts import completion_prompts
from octavo.server.protocol.completions import CompletionRequest
from tests.conftest import weights_path

QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|file_sep|>")
FIRST = 260  # id of the first of `control`


def engine(control: tuple[str, ...] = QWEN, *, begins_with_bos: bool = False, **knobs: Any) -> FakeEngine:
    tokenizer = byte_tokenizer(begins_with_bos=begins_with_bos, control=control)
    return FakeEngine(model_tokenizer=tokenizer, model_info=replace(INFO, vocab_size=FIRST + len(control)), **knobs)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(text, add_special_tokens=False))


@pytest.mark.parametrize(
    ("control", "order"),
    [
        (QWEN, (260, 262, 261)),
        (("<fim_prefix>", "<fim_middle>", "<fim_suffix>"), (260, 262, 261)),
        (("<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"), (261, 260, 262)),
    ],
    ids=["qwen", "starcoder", "deepseek"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_is_prefix_and_suffix_each_after_its_token_and_ends_with_that_of_the_middle(
    control: tuple[str, ...], order: tuple[int, int, int], stream: bool
) -> None:
    served = engine(control)
    assert complete("def f(", served, suffix="return a", stream=stream).status == 200
    [request] = served.requests
    before, after, middle = order
    assert request.prompt_token_ids == (before, *ids_of("def f("), after, *ids_of("return a"), middle)


def test_a_text_keeps_the_models_first_token_in_front_and_ids_get_none() -> None:
    served = engine(begins_with_bos=True)
    bos = served.model_tokenizer.bos_token_id
    complete(["x", "y"], served, suffix="z")
    complete([5, 6], served, suffix="z")
    z = ids_of("z")
    assert [request.prompt_token_ids for request in served.requests] == [
        (bos, 260, *ids_of("x"), 262, *z, 261),
        (bos, 260, *ids_of("y"), 262, *z, 261),
        (260, 5, 6, 262, *z, 261),
    ]


def test_an_empty_prompt_is_a_middle_before_the_suffix() -> None:
    served = engine()
    assert complete("", served, suffix="z").status == 200
    assert served.requests[0].prompt_token_ids == (260, 262, *ids_of("z"), 261)


def test_control_tokens_that_prompt_and_suffix_spell_are_text() -> None:
    served = engine()
    complete("<|fim_middle|>", served, suffix="<|fim_pad|>")
    assert max(served.requests[0].prompt_token_ids[1:-1]) == 262  # the suffix token alone
    assert served.requests[0].prompt_token_ids.count(261) == 1


def test_a_middle_ends_at_any_fill_in_token_unless_no_end_is_wanted() -> None:
    served = engine()
    complete("x", served, suffix="z", stop_token_ids=[7])
    complete("x", served, suffix="z", stop_token_ids=[7], ignore_eos=True)
    complete("x", served, stop_token_ids=[7])
    ended, endless, plain = (request.params.stop_token_ids for request in served.requests)
    assert sorted(ended) == [7, 260, 261, 262, 263, 264] and endless == plain == (7,)


def test_the_answer_is_the_middle_alone_and_the_suffix_counts_as_prompt() -> None:
    answer = complete("x", engine(reply="mid"), suffix="zz").json()
    assert answer["choices"][0]["text"] == "mid" and answer["usage"]["prompt_tokens"] == 6


@pytest.mark.parametrize("control", [(), QWEN[:2]], ids=["none", "two of three"])
def test_a_model_without_the_tokens_refuses_a_suffix_and_takes_an_empty_one(control: tuple[str, ...]) -> None:
    answer = complete("x", engine(control), suffix="z")
    assert answer.status == 400
    assert (answer.error["param"], answer.error["code"]) == ("suffix", "unsupported_parameter")
    assert "no tokens for filling in" in answer.error["message"]
    assert complete("x", engine(control), suffix="").status == 200


def test_an_echo_beside_a_suffix_is_refused() -> None:
    answer = complete("x", engine(), suffix="z", echo=True)
    assert answer.status == 400 and answer.error["param"] == "echo"


def test_prefix_and_suffix_have_to_fit_together() -> None:
    answer = complete("x" * 250, engine(), suffix="z" * 260)
    assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
    assert "has 513" in answer.error["message"]


@pytest.mark.parametrize(("control", "most"), [((), 0), (QWEN, None)])
def test_the_description_says_whether_a_suffix_may_be_given(control: tuple[str, ...], most: int | None) -> None:
    document = get(fake_app(engine(control)), "/openapi.json").json()
    schema = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    [text] = [form for form in schema["properties"]["suffix"]["anyOf"] if form["type"] == "string"]
    assert text.get("maxLength") == most


@pytest.mark.weights
def test_a_real_code_model_fills_in_what_the_suffix_calls_for() -> None:
    from octavo import LLM, SamplingParams

    llm = LLM(weights_path("qwen05"), threads=1, max_num_seqs=2, max_context=256)
    fill_in = required_fill_in(llm.tokenizer)
    for suffix, wanted in (("\n\nprint(math.sqrt(2))\n", "math\n"), ("\n\nprint(json.dumps([]))\n", "json\n")):
        request = CompletionRequest(prompt="import ", suffix=suffix)
        [prompt] = asyncio.run(completion_prompts(llm.tokenizer, request, INFO, fill_in))
        params = SamplingParams(max_tokens=3, stop_token_ids=fill_in.ends)
        assert llm.generate(prompt.token_ids, params)[0].outputs[0].text.startswith(wanted)
