"""/v1/embeddings over the fake engine: forms of input and output, and what is refused."""

from __future__ import annotations

import base64
import struct

import pytest
from api_calls import post
from fake_engine import FakeEngine, byte_tokenizer

from octavo.errors import QueueFull
from octavo.server.protocol.answers import Embeddings

PATH = "/v1/embeddings"


def embed(given, engine=None, **fields):
    answer = post(PATH, {"input": given, **fields}, engine)
    assert answer.status == 200, answer.body
    Embeddings.model_validate_json(answer.body)
    return answer.json()


def refusal(body, **settings):
    answer = post(PATH, body, **settings)
    assert answer.status == 400
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ("abc", [(64, 65, 66)]),
        (["abc", "d"], [(64, 65, 66), (67,)]),
        ([1, 2.0, 3], [(1, 2, 3)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_each_input_has_a_vector_in_its_place_and_its_tokens_are_counted(given, ids):
    engine = FakeEngine()
    answer = embed(given, engine)
    assert [request.prompt_token_ids for request in engine.requests] == ids
    assert answer["object"] == "list" and answer["model"] == "fake-model"
    assert [each["index"] for each in answer["data"]] == list(range(len(ids)))
    assert [tuple(each["embedding"]) for each in answer["data"]] == [
        FakeEngine.vector(each) for each in engine.requests
    ]
    total = sum(map(len, ids))
    assert answer["usage"] == {"prompt_tokens": total, "total_tokens": total}


def test_a_text_begins_with_the_models_own_first_token():
    engine = FakeEngine(model_tokenizer=byte_tokenizer(begins_with_bos=True))
    assert embed("a", engine)["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("pooling", [None, "mean", "last"])
def test_pooling_is_the_mean_unless_the_last_token_is_asked_for(pooling):
    engine = FakeEngine()
    embed("abc", engine, pooling=pooling, user="me", cache_salt="s", priority=3)
    [request] = engine.requests
    assert (request.pooling, request.cache_salt, request.priority) == (pooling or "mean", "s", 3)


def test_base64_holds_the_same_values_as_little_endian_float32():
    engine = FakeEngine()
    plain = [
        each["embedding"] for each in embed(["abc", "dc"], engine, pooling="last", encoding_format="float")["data"]
    ]
    packed = [each["embedding"] for each in embed(["abc", "dc"], pooling="last", encoding_format="base64")["data"]]
    assert [list(struct.unpack("<4f", base64.b64decode(each))) for each in packed] == [
        list(struct.unpack("<4f", struct.pack("<4f", *each))) for each in plain
    ]


def test_fewer_dimensions_are_the_first_values_at_length_one():
    assert embed("abc", dimensions=1)["data"][0]["embedding"] == [1.0]
    assert embed("abc", dimensions=4)["data"][0]["embedding"] == [0.5] * 4
    assert embed("abc", dimensions=2)["data"][0]["embedding"] == pytest.approx([0.5**0.5] * 2, rel=1e-7)


@pytest.mark.parametrize(
    ("fields", "param", "complaint"),
    [
        ({"input": ""}, "input", "input has no tokens"),
        ({"input": ["a", ""]}, "input", "input[1] has no tokens"),
        ({"input": []}, "input", "has 0 items"),
        ({"input": [[]]}, "input[0]", "has 0 items"),
        ({"input": [300]}, "input", "the vocabulary has ids 0 to 259"),
        ({"input": {"text": "a"}}, "input", "text, a list of texts"),
        ({"input": "x" * 513}, "input", "maximum context length is 512 tokens"),
        ({"input": ["x"] * 129}, "input", "input has 129 inputs; at most 128"),
        ({"input": "a", "dimensions": 5}, "dimensions", "this model's embeddings have 1 to 4"),
        ({"input": "a", "dimensions": 0}, "dimensions", "dimensions is 0"),
        ({"input": "a", "pooling": "max"}, "pooling", "pooling is 'max'"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "encoding_format is 'int8'"),
        ({"input": "a", "temperature": 1}, "temperature", "is not a field of this request"),
        ({}, "input", "input is missing"),
    ],
)
def test_what_cannot_be_embedded_is_400_by_its_field(fields, param, complaint):
    error = refusal(fields)
    assert error["param"] == param and complaint in error["message"]


def test_faults_and_full_queues_have_their_own_status():
    assert post(PATH, {"input": "a"}, FakeEngine(fault="fault", fault_after=0)).status == 500
    assert post(PATH, {"input": "a"}, FakeEngine(fault="queue_timeout", fault_after=0)).status == 503
    full = post(PATH, {"input": "a"}, FakeEngine(refusal=QueueFull("the queue is full", retry_after_s=3)))
    assert full.status == 429 and full.headers["retry-after"] == "3"
    assert post(PATH, {"input": "a", "model": "other"}).status == 404
