"""Alert rules and the dashboard ask only for what is exported, and promtool, where it is installed, agrees."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from ledger.documents.audit import OUTCOMES
from services.runtime.metrics import BY_NAME, ExportedMetric

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/kolm.json").read_text("utf-8"))
SERIES = {series: metric for metric in BY_NAME.values() for series in metric.series}
OF_PROMETHEUS = {"up": {"job", "instance"}}
OF_A_SCRAPE = {"job", "instance"}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in (*DASHBOARD["panels"], *DASHBOARD["annotations"]["list"]):
        for target in panel.get("targets", [panel] if "expr" in panel else []):
            yield target["expr"].replace("$__rate_interval", "1m")


def parts(node: Any) -> Iterator[Any]:
    """The expression and everything below it."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if getattr(node, name, None) is not None and not isinstance(getattr(node, name), str):
            yield from parts(getattr(node, name))
    for argument in getattr(node, "args", None) or ():
        yield from parts(argument)


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_asks_for_exported_series_by_labels_that_they_have(expression: str) -> None:
    tree = list(parts(promql_parser.parse(expression)))
    selectors = [part for part in tree if isinstance(part, promql_parser.VectorSelector)]
    assert selectors
    for selector in selectors:
        assert selector.name in SERIES or selector.name in OF_PROMETHEUS
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert labels <= (_labels(SERIES[selector.name]) if selector.name in SERIES else OF_PROMETHEUS["up"])
    grouped = set(re.findall(r"by \(([^)]*)\)", expression))
    known = set().union(*(_labels(SERIES[each.name]) for each in selectors if each.name in SERIES), OF_A_SCRAPE)
    assert {label.strip() for labels in grouped for label in labels.split(",")} <= known


def _labels(metric: ExportedMetric) -> set[str]:
    return {*metric.labels, *OF_A_SCRAPE, *(("le",) if metric.kind == "histogram" else ())}


def test_every_metric_of_kolm_s_own_is_on_the_dashboard_or_in_a_rule() -> None:
    asked = {part.name for each in expressions() for part in parts(promql_parser.parse(each)) if hasattr(part, "name")}
    quiet = {"kolm_build_info", "kolm_http_requests_in_flight"}  # `kolm status` shows the one; the front's own limit
    of_kolm = {metric for metric in BY_NAME.values() if not metric.name.startswith("process_")}
    missing = {metric.name for metric in of_kolm if not asked & set(metric.series)} - quiet
    assert not missing


def test_outcomes_that_rules_name_exist() -> None:
    named = {outcome for each in expressions() for outcome in re.findall(r'outcome="(\w+)"', each)}
    assert named == {"DEVIATION"} <= set(OUTCOMES)


def test_every_alert_says_what_to_do_on_a_page_that_has_the_section() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith((".", "?"))
        if "runbook" in rule["annotations"]:
            page, _, anchor = rule["annotations"]["runbook"].partition("#")
            headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text("utf-8"), re.M)
            assert anchor in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "command",
    [("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")],
)
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
