"""/v1/models and /v1/models/{id}."""

from __future__ import annotations

import pytest
from asgi_calls import fake_app, get
from fake_engine import INFO, FakeEngine

from octavo.errors import InvalidRequest
from octavo.server.errors import HttpError
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState


def test_the_model_is_listed_as_openai_lists_it() -> None:
    found = get(fake_app(), "/v1/models").json()
    assert found["object"] == "list"
    assert [each["id"] for each in found["data"]] == ["fake-model"]
    model = found["data"][0]
    assert model["object"] == "model" and model["owned_by"] and model["created"] == INFO.created
    assert model["max_model_len"] == INFO.max_context


def test_served_names_replace_the_model_s_own() -> None:
    app = fake_app(model_names=("gpt-x", "org/name"))
    assert [each["id"] for each in get(app, "/v1/models").json()["data"]] == ["gpt-x", "org/name"]
    assert get(app, "/v1/models/org/name").json()["id"] == "org/name"
    assert get(app, "/v1/models/fake-model").status == 404


@pytest.mark.parametrize("name", ["other", "../../etc/passwd", "/etc/passwd", "fake-model/", "x" * 5000])
def test_an_unknown_model_is_404_by_name(name: str) -> None:
    answer = get(fake_app(), f"/v1/models/{name}")
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found" and answer.error["param"] == "model"
    assert len(answer.error["message"]) < 500


def test_a_request_may_leave_the_model_out_but_not_get_it_wrong() -> None:
    state = ServerState(FakeEngine(), ServerSettings(model_names=("a", "b")))
    assert [state.check_model(name) for name in (None, "a", "b")] == ["a", "a", "b"]
    for name in ("", "c", "fake-model"):
        with pytest.raises(HttpError) as raised:
            state.check_model(name)
        assert raised.value.status == 404


def test_a_name_that_is_given_twice_is_listed_once() -> None:
    assert ServerState(FakeEngine(), ServerSettings(model_names=("a", "b", "a"))).model_names() == ("a", "b")


def test_an_empty_served_name_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="served-model-name"):
        ServerSettings(model_names=("a", " "))
