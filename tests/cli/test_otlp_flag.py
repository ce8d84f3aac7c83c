"""`octavo serve --otlp-endpoint` and OpenTelemetry's variables: where spans go, and what is refused."""

from __future__ import annotations

import logging
import sys

import pytest

from octavo.errors import InvalidRequest
from octavo.server.tracing.endpoint import traces_url
from tests.cli.conftest import Run

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
BASE, WHOLE = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXPORTER, None)


@pytest.mark.parametrize(
    ("flag", "variables", "expected"),
    [
        (None, {}, None),
        (None, {BASE: ""}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/", {}, "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", {}, "https://c/otlp/v1/traces"),
        ("http://c:4318", {BASE: "http://d:4318"}, "http://c:4318/v1/traces"),
        (None, {BASE: "http://d:4318"}, "http://d:4318/v1/traces"),
        (None, {WHOLE: "http://e/take"}, "http://e/take"),
        (None, {BASE: "http://d:4318", WHOLE: "http://e/take"}, "http://e/take"),
    ],
)
def test_the_flag_wins_over_the_variables_and_the_path_is_added_to_a_collector_s_address(flag, variables, expected):
    assert traces_url(flag, variables) == expected


@pytest.mark.parametrize("value", ["collector:4318", "ftp://c", "http://", "http://c:port", "http://c:99999", "c"])
def test_what_is_no_url_is_refused_under_the_name_it_was_given_by(value):
    with pytest.raises(InvalidRequest, match=r"--otlp-endpoint is .*give a collector's URL"):
        traces_url(value, {})
    with pytest.raises(InvalidRequest, match=f"{BASE} is "):
        traces_url(None, {BASE: value})


def test_the_command_refuses_a_wrong_address_before_anything_else(octavo: Run):
    done = octavo("serve", "-m", "nowhere", "--otlp-endpoint", "collector:4318")
    assert done.status == 2
    assert "--otlp-endpoint is 'collector:4318'" in done.error


@pytest.mark.usefixtures("without_the_extra")
def test_without_the_extra_the_flag_is_refused_in_one_line_with_the_remedy(octavo: Run):
    done = octavo("serve", "-m", "nowhere", "--otlp-endpoint", "http://127.0.0.1:4318")
    assert done.status == 2
    assert "OpenTelemetry is not installed" in done.error and "pip install 'octavo[otel]'" in done.error


@pytest.mark.usefixtures("without_the_extra")
def test_without_the_extra_a_variable_set_for_all_programs_is_a_warning(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "octavo"):
        assert traces_url(None, {BASE: "http://d:4318"}) is None
    (record,) = caplog.records
    assert BASE in record.getMessage() and "pip install 'octavo[otel]'" in record.getMessage()


@pytest.mark.usefixtures("without_the_extra")
def test_who_asks_for_no_traces_needs_no_extra():
    assert traces_url(None, {}) is None
