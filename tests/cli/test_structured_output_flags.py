"""`octavo generate --json-schema` and `octavo bench grammar`, and the same through `LLM`."""

from __future__ import annotations

import json

import pytest

from octavo import LLM, GrammarSpec, InvalidRequest, SamplingParams

SCHEMA = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 2}


@pytest.fixture
def schema(tmp_path):
    """`schema(text)`: a file of it."""

    def write(text: str):
        path = tmp_path / "schema.json"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_answer_is_json_of_the_schema_and_python_gives_the_same(octavo, model, schema):
    flags = ("--raw", "-p", "The harbour", "-n", "40", "--temperature", "1", "--seed", "3")
    done = octavo("generate", "-m", model, "--json-schema", schema(json.dumps(SCHEMA)), *flags)
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert len(found) == 2 and set(found) <= {"red", "green"}
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=3, grammar=GrammarSpec.json_schema(SCHEMA))
    llm = LLM(model, threads=1, max_num_seqs=1)
    [output] = llm.generate("The harbour", params)
    assert output.outputs[0].text == done.out.removesuffix("\n") and output.outputs[0].finish_reason == "stop"
    with pytest.raises(InvalidRequest, match="unclosed group"):
        llm.generate("The harbour", SamplingParams(grammar=GrammarSpec.regex("(")))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"type": "strin"}', "schema.json': the JSON schema cannot be used at #: Invalid type: strin"),
        ('{"type": ', "schema.json' is not JSON at line 1, column"),
        ("7", "schema.json' is 7; give an object"),
    ],
)
def test_a_schema_that_cannot_be_used_is_one_line_and_status_2(octavo, model, schema, text, complaint):
    done = octavo("generate", "-m", model, "--json-schema", schema(text), "-p", "x")
    assert done.status == 2 and complaint in done.error


def test_a_schema_file_that_cannot_be_read_is_named(octavo, tmp_path):
    done = octavo("generate", "--json-schema", tmp_path / "nowhere.json", "-p", "x")
    assert done.status == 2 and "nowhere.json' cannot be read (No such file or directory)" in done.error
    (tmp_path / "latin.json").write_bytes(b'{"enum": ["\xe9"]}')
    done = octavo("generate", "--json-schema", tmp_path / "latin.json", "-p", "x")
    assert done.status == 2 and "not UTF-8 at byte 11" in done.error


def test_the_benchmark_tells_both_speeds_and_the_cost(octavo, model):
    numbers = ("--batch", 2, "--new-tokens", 40, "--rounds", 2)  # more than one step may take
    done = octavo("bench", "grammar", "-m", model, "--json", *numbers)
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["batch"], found["new_tokens"], found["rounds"]) == (2, 40, 2)
    assert found["free_tps"]["low"] > 0 and found["held_tps"]["low"] > 0
    assert found["cost_percent"]["low"] <= found["cost_percent"]["high"] < 100
    done = octavo("bench", "grammar", "-m", model, *numbers)
    assert [line.split("  ")[0] for line in done.out.splitlines()[-3:]] == ["free text", "JSON schema", "cost"]
    refused = octavo("bench", "grammar", "-m", model, "--rounds", 0)
    assert refused.status == 2 and "rounds is 0; it must be at least 1" in refused.err
