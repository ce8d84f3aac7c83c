"""The dashboard, scrape configuration and alert rules in docs/observability: they parse, and name what is measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from octavo.server.metrics import ServerMetrics
from tests.server.fake_engine import FakeEngine

HERE = Path(__file__).resolve().parents[2] / "docs" / "observability"
DASHBOARD = "grafana-dashboard.json"

FUNCTIONS = {"histogram_quantile", "label_values", "max", "min", "min_over_time", "rate", "sum"}
WORDS = {"and", "by", "on", "or", "unless", "without"}
# What Prometheus adds itself: metrics, and labels of each.
OWN_METRICS, OWN_LABELS = {"up"}, {"job", "instance", "le"}

# A PromQL expression's parts, the first that fits; what a Grafana variable stands for is a number or a text.
_PARTS = re.compile(
    r"""(?P<space>\s+) | (?P<text>"[^"]*") | (?P<duration>\[[^\]]*\]) | (?P<matchers>\{[^}]*\})
    | (?P<labels>\b(?:by|without|on|ignoring)\s*\([^)]*\)) | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[a-zA-Z_:][\w:]*) | (?P<operator>==|!=|>=|<=|[-+*/%<>(),])""",
    re.X,
)


def measured() -> dict[str, set[str]]:
    """Labels by name of sample, of every metric that a server over a loaded engine shows."""
    metrics = ServerMetrics()
    metrics.show_engine(FakeEngine())
    metrics.count_request("/v1/models", "ok", 0.1)
    metrics.token_timer(0.0)
    page, _ = metrics.page("")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def parts(expression: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of each part. Fails where something is none."""
    at = 0
    while at < len(expression):
        found = _PARTS.match(expression, at)
        assert found is not None, f"{expression[at:]!r} in {expression!r}"
        if found.lastgroup != "space":
            yield str(found.lastgroup), found[0]
        at = found.end()


def check(expression: str) -> None:
    """Every metric and every label of the expression is there, and its brackets are closed."""
    known = measured()
    named: set[str] = set()
    labels: set[str] = set()
    depth = 0
    for kind, text in parts(expression):
        if kind == "name" and text not in FUNCTIONS | WORDS | OWN_LABELS:
            named.add(text)
        elif kind == "matchers":
            labels |= set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', text))
        elif kind == "labels":
            labels |= set(re.findall(r"\w+", text.partition("(")[2]))
        elif kind == "operator":
            depth += {"(": 1, ")": -1}.get(text, 0)
            assert depth >= 0, expression
    assert depth == 0, expression
    assert named, f"{expression!r} names no metric"
    assert named <= known.keys() | OWN_METRICS, named - known.keys()
    of_them = OWN_LABELS.union(*(known.get(name, set()) for name in named))
    assert labels <= of_them, (expression, labels - of_them)


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / DASHBOARD).read_text())
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((HERE / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    variables = [each["definition"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    return [*asked, *variables, *(rule["expr"] for rule in rules())]


def test_every_expression_names_metrics_and_labels_that_the_server_has():
    found = expressions()
    assert len(found) > 40
    for expression in found:
        check(expression)


@pytest.mark.parametrize(
    "wrong",
    [
        "rate(octavo_tokens_total[5m])",
        "octavo_generation_tokens",
        'octavo_kv_blocks{kind="live"}',
        "sum by (status) (octavo_requests_total)",
        "sum (octavo_steps_total",
        "1 > 0",
    ],
)
def test_an_expression_that_names_what_is_not_there_would_be_found(wrong):
    with pytest.raises(AssertionError):
        check(wrong)


def test_the_dashboard_shows_every_metric_of_the_engine():
    shown = "\n".join(target["expr"] for panel in panels() for target in panel["targets"])
    families = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in measured()}
    assert {name for name in families if name.startswith("octavo_") and name not in shown} == set()


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not taken & cells and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_the_scrape_configuration_asks_where_the_server_answers_and_reads_the_rules():
    config = yaml.safe_load((HERE / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert all((HERE / name).exists() for name in config["rule_files"])
    named = {match for rule in rules() for match in re.findall(r'job="([^"]*)"', rule["expr"])}
    assert named == {job["job_name"]}


def test_every_rule_says_how_bad_it_is_and_what_happened():
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 5
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
