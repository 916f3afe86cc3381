"""deploy/vllm puts vLLM behind the stack: its variables are settings, its manifests are those of Kubernetes."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from services.generation.settings import GenerationSettings
from tests.compose.stack import ROOT, SERVICES, defaulted

FOLDER = ROOT / "deploy/vllm"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yml").read_text("utf-8"))
MANIFESTS = list(yaml.safe_load_all((FOLDER / "kubernetes/vllm.yaml").read_text("utf-8")))


def _settings(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> GenerationSettings:
    for name, value in variables.items():
        monkeypatch.setenv(name, defaulted(value))
    return GenerationSettings()


def _arguments() -> list[list[str]]:
    pods = (one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] == "Deployment")
    return [pod["containers"][0]["args"] for pod in pods]


def test_compose_puts_the_generation_service_before_both(monkeypatch: pytest.MonkeyPatch) -> None:
    services = COMPOSE["services"]
    variables = services["generation"]["environment"] | {"KOLM_GENERATION_WEIGHTS": "smollm2"}
    settings = _settings(variables, monkeypatch)
    hosts = {(url or "").removeprefix("http://").partition(":")[0] for url in (settings.url, settings.plain_url)}
    assert hosts == services.keys() - SERVICES.keys()
    assert all(services[host]["profiles"] == ["vllm"] for host in hosts)


def test_only_one_of_them_speculates_and_all_else_is_the_same() -> None:
    for fast, plain in (
        (COMPOSE["services"]["vllm"]["command"], COMPOSE["services"]["vllm-plain"]["command"]),
        tuple(
            one["spec"]["template"]["spec"]["containers"][0]["args"] for one in MANIFESTS if one["kind"] == "Deployment"
        ),
    ):
        more = [flag.partition("=")[0] for flag in fast if flag not in plain]
        assert (more, [flag for flag in plain if flag not in fast]) == (
            ["--per-request-spec-decode-metrics", "--speculative-config"], [],
        )  # fmt: skip


def test_manifests_are_those_of_kubernetes() -> None:
    for document in MANIFESTS:
        kubernetes_validate.validate(document, "1.35", strict=True)


@pytest.mark.slow
def test_kustomize_builds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = next((name for name in ("kustomize", "kubectl") if shutil.which(name)), None)
    if tool is None:
        pytest.skip("there is neither kustomize nor kubectl")
    command = [tool, "build" if tool == "kustomize" else "kustomize", str(FOLDER / "kubernetes")]
    built = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    for document in built:
        kubernetes_validate.validate(document, "1.35", strict=True)
    (generation,) = (one for one in built if (one["kind"], one["metadata"]["name"]) == ("StatefulSet", "generation"))
    (container,) = generation["spec"]["template"]["spec"]["containers"]
    named = {each["name"]: each["value"] for each in container["env"]}
    asked = ("ENGINE", "URL", "PLAIN_URL", "ENGINE_FLAG")
    settings = _settings({f"KOLM_GENERATION_{name}": named[f"KOLM_GENERATION_{name}"] for name in asked}, monkeypatch)
    assert {settings.url, settings.plain_url} == {"http://vllm:8000", "http://vllm-plain:8000"}
