"""Real checkpoints: the form is found in their files, and calls that must be made are made and read."""

from __future__ import annotations

import json

import pytest
from readings import Call

from octavo.llm import LLM
from octavo.models.loaders.gguf_file import GGUFFile
from octavo.sampling_params import SamplingParams
from octavo.server.choice_reader import ChoiceReader
from octavo.server.parsers.detect import detect_thinking, detect_tools, parser_of
from octavo.server.parsers.tool_grammar import BeforeCalls, OfferedTool, tool_grammar
from octavo.tokenizer import Tokenizer
from tests.conftest import weights_path

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}}


@pytest.mark.weights
@pytest.mark.parametrize(("alias", "form"), [("smollm2", None), ("gemma3", None), ("qwen05", "hermes")])
def test_the_form_of_calls_is_found_in_the_models_file(alias: str, form: str | None) -> None:
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(weights_path(alias)).metadata)
    support = detect_tools(tokenizer)
    assert (support.form.name if support.form else None) == form and support.described == (form is not None)
    assert detect_thinking(tokenizer) is None


@pytest.mark.weights
def test_a_call_that_must_be_made_is_made_and_read() -> None:
    llm = LLM(str(weights_path("qwen05")), threads=1)
    tokenizer = llm.tokenizer
    form = detect_tools(tokenizer).form
    assert form is not None
    grammar = tool_grammar(
        [OfferedTool("get_weather", PARAMETERS, True)], form, BeforeCalls(), tokenizer.control_pieces, parallel=False
    )
    ids = tokenizer.encode_chat([{"role": "user", "content": "Is it warm in Bonn?"}], tools=[TOOL])
    (answer,) = llm.generate([ids], SamplingParams(max_tokens=60, grammar=grammar))
    choice = answer.outputs[0]
    piece = ChoiceReader(None, parser_of(form, {"get_weather": PARAMETERS}), ()).read(choice.text, choice.finish_reason)
    calls: list[Call] = [("get_weather", "".join(call.arguments for call in piece.calls))]
    assert piece.finish_reason == "tool_calls" and piece.text == ""
    assert "bonn" in json.loads(calls[0][1])["city"].lower()
