"""Files to deploy kolm with: compose, alert rules, the dashboard."""

import json
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from docs.configuration import service_settings
from ledger.documents.audit import ACCUSATIONS, OUTCOMES
from services.runtime.metrics import BY_NAME, ExportedMetric
from tests.compose.stack import COMPOSE, OURS, SERVICES, defaulted
from tests.documented import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
OTHERS = ["postgres", "prometheus", "grafana"]
FOLLOWERS = ["monitor"]
"""Ours too, without a port."""
HANDS = ["access", "rotate-key", "tokens", "trust"]


def test_every_service_is_ours_a_client_or_third_party() -> None:
    assert set(SERVICES) == {*OURS, *FOLLOWERS, *OTHERS, *HANDS}


def test_what_others_made_is_named_by_its_digest() -> None:
    base = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    arguments = {defaulted(SERVICES[name]["build"]["args"]["PYTHON_IMAGE"]) for name in OURS}
    images = {defaulted(service["image"]) for service in SERVICES.values()}
    assert {*base} == arguments
    for image in (*base, *(image for image in images if not image.startswith("kolm-"))):
        assert re.fullmatch(r"[a-z0-9/]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image


@pytest.mark.parametrize("name", OURS)
def test_each_variable_is_a_setting_of_its_service_and_its_image_starts_that_service(name: str) -> None:
    fields = {f"KOLM_{name.upper()}_{field.upper()}" for field in service_settings(f"services.{name}").model_fields}
    assert set(SERVICES[name]["environment"]) <= {*fields, "KOLM_SECRETS_DIR"}
    assert SERVICES[name]["build"]["target"] == name
    assert re.search(rf'AS {name}\nEXPOSE \d+\nENTRYPOINT \["python", "-m", "services\.{name}"\]', DOCKERFILE)


def test_only_what_runs_a_model_has_the_engine() -> None:
    by_parent = {name: parent for parent, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)}
    assert {name for name in OURS if by_parent[name] == "engine"} == {"generation", "auditor"}
    assert all(by_parent[name] == "small" for name in (*OURS, "tools") if name not in ("generation", "auditor"))


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert set(service.get("cap_add", ())) <= {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
    assert bool(service.get("cap_add")) == (name == "postgres")
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", [*OURS, *FOLLOWERS, *OTHERS])
def test_every_service_is_started_again_checked_and_given_time_to_stop(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["stop_grace_period"] == "30s"
    assert ("healthcheck" in SERVICES[name]) == (name not in FOLLOWERS)


def test_secrets_are_files_that_one_script_writes() -> None:
    script = (ROOT / "deploy/make-secrets").read_text("utf-8")
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"./secrets/{name}"}
        assert f"secrets/{name}" in script
    for service in SERVICES.values():
        assert not any("PASSWORD" in key and not key.endswith("FILE") for key in service.get("environment", {}))


def test_the_script_opens_its_own_files_alone(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/make-secrets", tmp_path / "deploy")
    (secrets := tmp_path / "secrets").mkdir(mode=0o755)
    (secrets / "receipts.pem").touch(mode=0o600)
    subprocess.run([tmp_path / "deploy/make-secrets"], check=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (secrets, *secrets.iterdir())}
    assert modes == {"secrets": 0o700, "receipts.pem": 0o600} | dict.fromkeys(COMPOSE["secrets"], 0o644)


def test_only_a_person_s_hand_writes_trusted_keys_and_principals() -> None:
    def writers(volume: str) -> set[str]:
        return {
            name
            for name, service in SERVICES.items()
            for each in service.get("volumes", ())
            if each.startswith(f"{volume}:") and not each.endswith(":ro")
        }

    assert writers("trusted") == {"trust", "rotate-key"}
    assert writers("principals") == {"access", "tokens"}
    assert SERVICES["trust"]["entrypoint"] == ["kolm", "trust"]


def test_the_witness_sees_no_private_key_of_the_log() -> None:
    assert not any(volume.startswith("ledger:") for volume in SERVICES["witness"]["volumes"])


def test_prometheus_scrapes_every_service_where_it_exports() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))["scrape_configs"]
    places = {job["job_name"]: job["dns_sd_configs"][0] for job in scraped}
    assert set(places) == set(OURS)
    assert {*re.findall(r'absent\(up{job="(\w+)"}\)', RULES.read_text("utf-8"))} == set(OURS)
    for name, place in places.items():
        assert place["names"] == [name]
        assert SERVICES[name]["environment"][f"KOLM_{name.upper()}_METRICS_PORT"] == place["port"]


@pytest.mark.parametrize("name", OURS)
def test_an_empty_variable_counts_as_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = service_settings(f"services.{name}")
    variables = {key: defaulted(value) for key, value in SERVICES[name]["environment"].items()}
    empty = [key for key, value in variables.items() if value == ""]
    for key in variables.keys() - {*empty, "KOLM_SECRETS_DIR"}:
        monkeypatch.setenv(key, variables[key])
    expected = settings.load().model_dump()
    for key in empty:
        monkeypatch.setenv(key, "")
    assert settings.load().model_dump() == expected
    assert bool(empty) == (name in ("ledger", "generation", "auditor"))


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


def test_outcomes_that_rules_name_exist() -> None:
    named = {outcomes for each in expressions() for outcomes in re.findall(r'outcome=~?"([\w|]+)"', each)}
    assert "|".join(ACCUSATIONS) in named
    assert {outcome for outcomes in named for outcome in outcomes.split("|")} <= set(OUTCOMES)


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
