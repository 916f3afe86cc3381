"""deploy/kubernetes runs what docker-compose.yml runs: the same images, commands, ports, variables and rights.

deploy/vllm puts vLLM behind either.
"""

import re
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.compose.stack import ROOT, SERVICES, defaulted

HERE = ["postgres", "ledger", "registry", "generation", "auditor", "http"]
"""The services of a cluster; it has a Prometheus and a Grafana of its own, and principals and keys by reference."""
ELSEWHERE: dict[str, dict[str, Any]] = {
    "generation": {
        # Each pod has a disk of its own, so that the pods need not share one folder; the key is the same for all.
        "KOLM_GENERATION_REPLICAS": None,
        "KOLM_GENERATION_KEY_FILE": "/var/lib/kolm/key/receipts.pem",
    },
    "http": {
        "KOLM_HTTP_EXPLORER_URL": None,
        "KOLM_HTTP_PUBLIC_NAME": '["http", "http.kolm", "http.kolm.svc", "http.kolm.svc.cluster.local"]',
    },
    "postgres": {"PGDATA": "/var/lib/postgresql/data/kolm"},
}
"""A cluster's variables that differ from docker-compose.yml."""
_UNITS = {"m": "Mi", "g": "Gi"}


def _items(path: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = yaml.safe_load((ROOT / path).read_text("utf-8"))["items"]
    return listed


BASE = _items("deploy/kubernetes/kolm.yaml")
WORKLOADS = {one["metadata"]["name"]: one for one in BASE if one["kind"] in ("StatefulSet", "Deployment")}


def _named(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"] for one in BASE if one["kind"] == kind}


def _pod(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = WORKLOADS[name]["spec"]["template"]["spec"]
    return pod


def _container(name: str) -> dict[str, Any]:
    pod = _pod(name)
    found = [one for one in (*pod.get("initContainers", ()), *pod["containers"]) if one["name"] == name]
    assert len(found) == 1
    container: dict[str, Any] = found[0]
    return container


def test_a_cluster_runs_the_services_of_compose_that_serve_and_audit() -> None:
    hands = {"access", "rotate-key", "tokens", "trust"}
    beside = {"explorer", "monitor", "witness", "prometheus", "grafana"}  # run from outside of the log, or on a desk
    assert set(WORKLOADS) == set(HERE) == set(SERVICES) - hands - beside


@pytest.mark.parametrize("name", HERE)
def test_a_container_is_that_of_compose(name: str) -> None:
    service, container = SERVICES[name], _container(name)
    assert container["image"] == defaulted(service["image"])
    assert container.get("command") == service.get("entrypoint")
    assert container.get("args") == ([defaulted(each) for each in service["command"]] if "command" in service else None)
    assert container["resources"]["limits"]["memory"] == re.sub(
        "[mg]$", lambda end: _UNITS[end.group()], defaulted(service["mem_limit"])
    )
    variables = {key: defaulted(value) for key, value in service["environment"].items()} | ELSEWHERE.get(name, {})
    wanted = {key: value for key, value in variables.items() if value}  # an empty one counts as unset
    assert {one["name"]: one["value"] for one in container["env"]} == wanted


@pytest.mark.parametrize("name", HERE)
def test_ports_are_those_of_compose_and_a_name_leads_to_them(name: str) -> None:
    service, container = SERVICES[name], _container(name)
    variables = service["environment"]
    open_ports = {int(value) for key, value in variables.items() if key.endswith("_METRICS_PORT")}
    open_ports |= {int(value.rsplit(":", 1)[1]) for key, value in variables.items() if key.endswith("_LISTEN")}
    open_ports |= {5432} if name == "postgres" else set()
    assert {port["containerPort"] for port in container.get("ports", ())} == open_ports
    published = {int(defaulted(port).rsplit(":", 1)[1]) for port in service.get("ports", ())}
    reached = published or open_ports
    if reached:
        spec = _named("Service")[name]
        assert {port["port"] for port in spec["ports"]} == reached
        assert spec["clusterIP"] == "None"  # each pod has an address, and clients go round them
        assert spec["selector"] == WORKLOADS[name]["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize("name", HERE)
def test_a_pod_has_no_more_rights_than_in_compose(name: str) -> None:
    pod, service = _pod(name), SERVICES[name]
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert context["runAsUser"] == context["fsGroup"] == (999 if name == "postgres" else _uid())
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["fsGroupChangePolicy"] == "OnRootMismatch"  # Always would open private keys to the group
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] == int(service["stop_grace_period"].removesuffix("s"))
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is service["read_only"] is True
        assert rights["capabilities"] == {"drop": service["cap_drop"]} == {"drop": ["ALL"]}
        assert rights["allowPrivilegeEscalation"] is False
        assert container["resources"]["limits"]["memory"]


def _uid() -> int:
    uid = re.search(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text("utf-8"))
    assert uid is not None
    return int(uid.group(1))


@pytest.mark.parametrize("name", HERE)
def test_folders_are_writable_where_they_are_in_compose(name: str) -> None:
    pod, container, service = _pod(name), _container(name), SERVICES[name]
    claims = {one["metadata"]["name"] for one in WORKLOADS[name]["spec"].get("volumeClaimTemplates", ())}
    declared = {volume["name"]: volume for volume in pod["volumes"]}
    assert not set(declared) & claims
    writable = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
    kept = {one["mountPath"]: one["name"] for one in container["volumeMounts"] if one["name"] in claims}
    assert {one["name"] for one in container["volumeMounts"]} <= {*declared, *claims}
    for volume in service.get("volumes", ()):
        _, folder, *mode = defaulted(volume).split(":")
        if mode == ["ro"]:
            assert folder not in writable
        else:
            assert any(folder == place or folder.startswith(f"{place}/") for place in writable), folder
            assert folder == "/var/cache/kolm" or any(folder.startswith(place) for place in kept), folder
    for folder in service["tmpfs"]:
        assert folder in writable
        medium = next(declared[one["name"]] for one in container["volumeMounts"] if one["mountPath"] == folder)
        assert medium["emptyDir"]["medium"] == "Memory"


def test_secrets_and_trusted_keys_are_references_and_read_only() -> None:
    assert not [one for one in BASE if one["kind"] in ("Secret", "ConfigMap")]
    for name in HERE:
        given = {volume["name"] for volume in _pod(name)["volumes"] if {"secret", "configMap"} & set(volume)}
        containers = (*_pod(name).get("initContainers", ()), *_pod(name)["containers"])
        mounts = [mount for container in containers for mount in container["volumeMounts"]]
        assert all(mount["readOnly"] for mount in mounts if mount["name"] in given)
        assert {mount["name"] for mount in mounts} >= given
        for secret in SERVICES[name].get("secrets", ()):
            (volume,) = (volume["secret"] for volume in _pod(name)["volumes"] if volume["name"] == "secrets")
            assert volume["items"] == [{"key": secret, "path": secret}]


def test_a_port_is_open_only_to_its_callers() -> None:
    policies = _named("NetworkPolicy")
    assert policies["closed"]["podSelector"] == {}
    assert policies["closed"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policies["closed"]
    assert policies["metrics"]["ingress"][0]["ports"] == [{"port": 9090}]
    for name, spec in policies.items():
        if name in ("closed", "metrics"):
            continue
        (rule,) = spec["ingress"]
        assert spec["podSelector"]["matchLabels"] == _named("Service")[name]["selector"]
        assert [port["port"] for port in rule["ports"]] == [port["port"] for port in _named("Service")[name]["ports"]]
        assert _let_in(rule) == _callers(name), name
    assert set(policies) == {"closed", "metrics", *HERE} - {"auditor"}


def _callers(name: str) -> set[str]:
    """The services of compose whose variables name this one."""
    target = re.compile(rf"(^|/){name}:\d+$")
    callers = {
        other for other in HERE for value in SERVICES[other]["environment"].values() if target.search(defaulted(value))
    }
    return callers | ({"ledger"} if name == "postgres" else set())  # the database's address is in a secret


def _let_in(rule: dict[str, Any]) -> set[str]:
    selectors = [source["podSelector"] for source in rule["from"] if "podSelector" in source]
    names = {one["matchLabels"]["app.kubernetes.io/name"] for one in selectors if "matchLabels" in one}
    return names | {value for one in selectors for term in one.get("matchExpressions", ()) for value in term["values"]}


def test_servers_divide_quotas_by_the_number_that_runs() -> None:
    variables = {one["name"]: one["value"] for one in _container("generation")["env"]}
    assert variables["KOLM_GENERATION_QUOTA_SERVERS"] == str(WORKLOADS["generation"]["spec"]["replicas"])


VLLM = ROOT / "deploy/vllm"
BEHIND: dict[str, Any] = yaml.safe_load((VLLM / "compose.yml").read_text("utf-8"))["services"]
MANIFESTS = _items("deploy/vllm/kubernetes/vllm.yaml")
PATCHED: dict[str, Any] = yaml.safe_load((VLLM / "kubernetes/kustomization.yaml").read_text("utf-8"))


def test_only_one_vllm_of_two_speculates_and_all_else_is_the_same() -> None:
    pods = (one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] == "Deployment")
    started = (BEHIND["vllm"]["command"], BEHIND["vllm-plain"]["command"])
    for fast, plain in (started, tuple(pod["containers"][0]["args"] for pod in pods)):
        more = [flag.partition("=")[0] for flag in fast if flag not in plain]
        assert more == ["--per-request-spec-decode-metrics", "--speculative-config"]
        assert [flag for flag in plain if flag not in fast] == []


def test_server_and_auditor_of_vllm_are_those_of_compose_and_of_one_engine() -> None:
    patches = {one["metadata"]["name"]: one for one in (yaml.safe_load(each["patch"]) for each in PATCHED["patches"])}
    assert set(patches) == {"generation", "auditor"}
    for name, patch in patches.items():
        (container,) = patch["spec"]["template"]["spec"]["containers"]
        assert container["name"] == name
        variables = {one["name"]: one["value"] for one in container["env"]}
        beside = BEHIND[name]["environment"]
        assert set(variables) == set(beside)
        differing = {each for each, value in beside.items() if variables[each] != value}
        assert differing <= {"KOLM_GENERATION_ENGINE_FLAG"}  # one GPU a pod: no parallelism to name
    served, audited = (BEHIND[name]["environment"] for name in ("generation", "auditor"))
    for setting, same in (("ENGINE", "ENGINE"), ("PLAIN_URL", "PLAIN_URL"), ("WEIGHTS", "MODEL")):
        assert served[f"KOLM_GENERATION_{setting}"] == audited[f"KOLM_AUDITOR_{same}"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("folder", ["deploy/kubernetes", "deploy/vllm/kubernetes"])
def test_kustomize_builds_what_is_written(folder: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", ROOT / folder], capture_output=True, text=True, check=True)
    built = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    written = BASE if folder == "deploy/kubernetes" else [*BASE, *MANIFESTS]
    assert set(built) == {(one["kind"], one["metadata"]["name"]) for one in written}
    for one in BASE if folder == "deploy/kubernetes" else MANIFESTS:
        made = built[one["kind"], one["metadata"]["name"]]
        assert made.get("spec") == one.get("spec")
        assert made["kind"] == "Namespace" or made["metadata"]["namespace"] == "kolm"


def test_manifests_are_those_of_kubernetes() -> None:
    for document in (*BASE, *MANIFESTS):
        kubernetes_validate.validate(document, "1.35", strict=True)
