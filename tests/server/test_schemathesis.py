"""What /openapi.json says is what a real server does: requests that it allows, made up by schemathesis, are answered,
those that it forbids are refused, none is a fault, and every answer has the shape it promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from server_process import model_server

from tests.tiny_models import save_hf

ALLOWED, FORBIDDEN = 25, 10  # calls of an operation; those without parameters are one call
# What no schema can say: what a grammar is, and which responses are kept.
UNSAYABLE = ("response_format", "regex", "choice", "grammar", "text", "previous_response_id")
OPERATIONS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/embeddings",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/cache/reset",
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "GET /v1/cache/stats",
    "GET /v1/internal/routes",
    "GET /metrics",
    "GET /health",
    "GET /ready",
    "GET /version",
)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What a server over a tiny model says of itself; the server must be well, and log no fault, to the end."""
    path = tmp_path_factory.mktemp("served") / "tiny"
    save_hf(path, "llama", num_hidden_layers=1)
    with model_server(path, {"threads": 1, "max_context": 256}, max_choices=4) as server, server.client() as client:
        server.wait_until_ready()
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        assert client.get("/health").status_code == 200
        assert all(group["live"] == 0 for group in client.get("/v1/cache/stats").json()["groups"])
        assert "Traceback" not in server.log and "error:" not in server.log


def statuses_of(operation: Any, mode: GenerationMode, number: int) -> Counter[int]:
    """How often which status answered `number` calls, the same ones at every run, each of whose answers is checked."""
    statuses: Counter[int] = Counter()

    @hypothesis.settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if mode == GenerationMode.POSITIVE and isinstance(case.body, dict):
            for name in UNSAYABLE:
                case.body.pop(name, None)
        answer = case.call(timeout=60)
        statuses[answer.status_code] += 1
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])
        assert b'data: {"error"' not in answer.content  # a fault in the middle of a stream
        if mode == GenerationMode.POSITIVE and answer.status_code != 200:
            # What no schema can bound: tokens of a text, choices times prompts, two names of one number.
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded" or error["param"] in ("n", "max_tokens"), error

    ask()
    return statuses


@pytest.mark.parametrize("label", OPERATIONS)
def test_what_the_description_allows_is_answered_and_nothing_is_a_fault(schema: Any, label: str) -> None:
    method, path = label.split()
    operation = schema[path][method]
    allowed = statuses_of(operation, GenerationMode.POSITIVE, ALLOWED)
    forbidden = statuses_of(operation, GenerationMode.NEGATIVE, FORBIDDEN) if operation.body else Counter[int]()
    # Most are answered, so that this shows something; how many depends on what schemathesis makes up.
    assert allowed[200] >= allowed.total() / 3 > 0
    assert forbidden.total() == 0 or forbidden[200] < forbidden.total()
