"""`make test-compose`: the stack of docker-compose.yml, really started, used, killed piece by piece, and taken down."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator

import pytest

from tests.compose.stack import ROOT, Stack, compose_command, wait

ASKED = os.environ.get("KOLM_TEST_COMPOSE") == "1"
pytestmark = [
    pytest.mark.skipif(not ASKED, reason="starts containers: make test-compose"),
    pytest.mark.timeout(3600),
]
SMALL = ("ledger", "registry", "explorer", "http", "witness")
SERVICES = (*SMALL, "generation", "auditor")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Built, up and healthy, its own keys trusted, and this machine let in."""
    command = compose_command()
    assert command, "no container engine answers, or there is no docker compose"
    subprocess.run([ROOT / "deploy/make-secrets"], check=True)
    folder = tmp_path_factory.mktemp("compose")
    made = Stack(command, folder)
    if "KOLM_VERSION" not in os.environ:  # it names images that are there already
        made.compose("build")
    try:
        made.up()
        made.compose("run", "--rm", "-T", "trust", "add", "/public")
        made.let_in("tester")
        keys = made.compose("run", "--rm", "-T", "--entrypoint", "tar cf - -C /var/lib/kolm trusted", "trust")
        (folder / "trusted.tar").write_bytes(keys.encode("latin-1"))
        with tarfile.open(folder / "trusted.tar") as archive:
            archive.extractall(folder, filter="data")
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "30")


def generate(stack: Stack, prompt: str) -> str:
    """The id of the receipt."""
    said = json.loads(stack.kolm("generate", prompt, "--max-tokens", "12", "--json"))
    return str(said["receipt"]["receipt_id"])


def receipts(stack: Stack) -> list[str]:
    return [each["receipt_id"] for each in json.loads(stack.kolm("receipts", "list", "--json", "--limit", "1000"))]


def status(stack: Stack) -> dict[str, object]:
    return dict(json.loads(stack.kolm("status", "--json")))


def test_containers_have_no_rights_and_no_torch_where_none_is_needed(stack: Stack) -> None:
    for service in SERVICES:
        for container in stack.inspect(service):
            host = container["HostConfig"]
            assert (container["Config"]["User"], host["ReadonlyRootfs"], host["CapDrop"]) == ("kolm", True, ["ALL"])
            assert host["Memory"] > 0
            found = stack.inside(container, "import importlib.util as u; print(u.find_spec('torch') is not None)")
            assert found.strip() == str(service not in SMALL)


def test_what_is_generated_is_audited_by_an_engine_of_the_auditor_s_own_and_verifies(stack: Stack) -> None:
    made = [generate(stack, f"Where is parcel {number}?") for number in range(3)]
    wait(lambda: status(stack)["verdicts"]["EXACT"] >= 3, lambda: str(status(stack)))  # type: ignore[index]
    assert set(made) <= set(receipts(stack))
    assert "the ledger holds what it signed" in stack.kolm("ledger", "verify")
    assert status(stack)["broken"] == []


@pytest.mark.parametrize("service", ["postgres", *SERVICES])
def test_a_killed_container_comes_back_and_nothing_is_lost_or_doubled(stack: Stack, service: str) -> None:
    before = receipts(stack)
    stack.kill(service)
    stack.up()
    made = generate(stack, f"After the {service} was killed")
    wait(lambda: made in receipts(stack), lambda: f"{made} is not in the ledger")
    assert sorted(receipts(stack)) == sorted([*before, made])
    stack.kolm("ledger", "verify")


def test_two_generation_servers_share_the_load_and_their_answers_agree(stack: Stack) -> None:
    stack.up("--scale", "generation=2")
    assert len(stack.inspect("generation")) == 2
    stack.compose("restart", "http")  # its channel keeps to the servers that it knows
    stack.up("--scale", "generation=2")  # waits until it is healthy
    token = stack._environment["KOLM_TOKEN"]
    answers = set()
    for _ in range(8):
        body = json.dumps({"model": "base", "prompt": "Where is my parcel?", "max_tokens": 8, "seed": 1}).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        request = urllib.request.Request("http://127.0.0.1:50057/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answers.add(json.load(answer)["choices"][0]["text"])
    assert len(answers) == 1
    scrape = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9090/metrics').read().decode())"
    for server in stack.inspect("generation"):
        lines = [line for line in stack.inside(server, scrape).splitlines() if line.startswith("vllm:request_success")]
        assert sum(float(line.split()[-1]) for line in lines) >= 1, lines
    stack.up("--scale", "generation=1")


def test_the_log_survives_a_restart_of_everything_and_a_stop_is_graceful(stack: Stack) -> None:
    before = receipts(stack)
    stack.compose("stop", "--timeout", "30")
    assert {one["State"]["ExitCode"] for service in SERVICES for one in stack.inspect(service)} == {0}
    stack.up()
    assert receipts(stack) == before
    stack.kolm("ledger", "verify")
