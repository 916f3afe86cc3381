"""`make test-compose`: the stack of docker-compose.yml, really started, used, killed piece by piece, and taken down."""

import json
import os
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compose.stack import (
    OURS,
    ROOT,
    Stack,
    compose_command,
    expect_hardened,
    expect_order,
    expect_service,
    service_of,
    wait,
)

ASKED = os.environ.get("KOLM_TEST_COMPOSE") == "1"
pytestmark = [pytest.mark.skipif(not ASKED, reason="starts containers: make test-compose"), pytest.mark.timeout(3600)]
RIGHTS = """
import errno, importlib.util, json, os, pathlib
def write(folder):
    try:
        pathlib.Path(folder, "written").touch()
    except OSError as error:
        return errno.errorcode[error.errno]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uid": os.getuid(), "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "privileges": int(status["NoNewPrivs"]), "root": write("/opt/kolm"), "trusted": write("/var/lib/kolm/trusted"),
    "torch": importlib.util.find_spec("torch") is not None,
}))
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Built, up and healthy, its own keys trusted, and this machine let in."""
    command = compose_command()
    assert command, "no container engine answers, or there is no docker compose"
    subprocess.run([ROOT / "deploy/make-secrets"], check=True)
    folder = tmp_path_factory.mktemp("compose") / "deployment"
    folder.mkdir()
    made = Stack(command, folder)
    if "KOLM_VERSION" not in os.environ:  # it names images that are there already
        made.compose("build")
    try:
        made.up()
        made.compose("run", "--rm", "-T", "trust", "add", "/public")
        made.let_in("tester")
        take_trusted_keys(made)
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "30")


def take_trusted_keys(stack: Stack) -> None:
    """The stack's keys count on this machine from here on."""
    keys = stack.compose("run", "--rm", "-T", "--entrypoint", "tar cf - -C /var/lib/kolm trusted", "trust")
    (stack.folder / "trusted.tar").write_bytes(keys.encode("latin-1"))
    with tarfile.open(stack.folder / "trusted.tar") as archive:
        archive.extractall(stack.folder, filter="data")


def generate(stack: Stack, prompt: str) -> str:
    """The id of the receipt."""
    output = json.loads(stack.kolm("generate", "--chat", prompt, "--max-tokens", "12", "--json"))
    return str(output["receipt"]["receipt_id"])


def receipts(stack: Stack) -> list[str]:
    return [each["receipt_id"] for each in json.loads(stack.kolm("receipts", "list", "--json", "--limit", "1000"))]


def status(stack: Stack) -> dict[str, Any]:
    return dict(json.loads(stack.kolm("status", "--json")))


def complete(stack: Stack) -> str:
    """The text that OpenAI's API answers."""
    asked = [{"role": "user", "content": "Where is my parcel?"}]
    body = json.dumps({"model": "base", "messages": asked, "max_tokens": 8, "seed": 1}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {stack.token}"}
    request = urllib.request.Request("http://127.0.0.1:50057/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def served(stack: Stack) -> list[float]:
    """The requests that each generation server has answered."""
    scrape = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9090/metrics').read().decode())"
    pages = (stack.inside(server, "python", "-c", scrape).splitlines() for server in stack.inspect("generation"))
    return [sum(float(line.split()[-1]) for line in page if line.startswith("vllm:request_success")) for page in pages]


def test_containers_are_what_the_file_says_and_start_in_its_order(stack: Stack) -> None:
    containers = stack.inspect()
    assert {service_of(each) for each in containers} == {"postgres", "access", *OURS, "monitor"}
    for container in containers:
        expect_hardened(container)
        if container["State"]["Running"]:
            expect_service(container)
    expect_order(containers)


def test_a_process_in_a_container_can_do_nothing_but_its_work_and_has_no_torch_without_need(stack: Stack) -> None:
    for service in (*OURS, "monitor"):
        shown = dict(json.loads(stack.inside(stack.inspect(service)[0], "python", "-c", RIGHTS)))
        assert shown.pop("torch") == (service in ("generation", "auditor")), service
        assert shown == {"uid": 10001, "capabilities": 0, "privileges": 1, "root": "EROFS", "trusted": "EROFS"}, service


def test_what_is_generated_is_audited_by_an_engine_of_the_auditor_s_own_and_verifies(stack: Stack) -> None:
    made = [generate(stack, f"Where is parcel {number}?") for number in range(3)]
    wait(lambda: status(stack)["verdicts"]["EXACT"] >= 3, lambda: str(status(stack)))
    assert set(made) <= set(receipts(stack))
    assert "ledger verified" in stack.kolm("ledger", "verify")
    assert status(stack)["broken"] == []


def test_a_monitor_follows_the_log(stack: Stack) -> None:
    made = generate(stack, "Is a monitor watching?")
    wait(lambda: made in receipts(stack), lambda: f"{made} is not in the ledger")
    size = json.loads(stack.kolm("ledger", "head", "--json"))["size"]

    def followed() -> bool:
        output = stack.compose("logs", "--no-color", "monitor").splitlines()
        checked = [int(line.split()[-6]) for line in output if line.endswith("entries checked, nothing is wrong")]
        return max(checked, default=0) >= int(size)

    wait(followed, lambda: stack.compose("logs", "--no-color", "monitor"))
    assert stack.inspect("monitor")[0]["State"]["Running"]


def test_prometheus_scrapes_every_service_and_knows_the_alert_rules(stack: Stack) -> None:
    if not stack.has_image("prometheus"):
        pytest.skip("there is no image of Prometheus")
    stack.up("prometheus", profile="observability")
    for container in stack.inspect("prometheus"):
        expect_hardened(container)
        expect_service(container)

    def scraped() -> set[str]:
        targets = asked_prometheus("targets")["activeTargets"]
        return {each["labels"]["job"] for each in targets if each["health"] == "up"}

    wait(lambda: scraped() == set(OURS), lambda: str(scraped()))
    assert {rule["health"] for group in asked_prometheus("rules")["groups"] for rule in group["rules"]} == {"ok"}
    stack.compose("rm", "--stop", "--force", "prometheus", profile="observability")


def asked_prometheus(what: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:9090/api/v1/{what}", timeout=30) as answer:
        return dict(json.load(answer)["data"])


def chapter(title: str) -> str:
    """A chapter, or what follows words in bold, of docs/operations.md."""
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    start = page.index(title)
    return page[start : page.index("\n\n", page.index("\n    ", start))]


def test_an_operator_s_key_counts_once_it_is_trusted(stack: Stack) -> None:
    stack.type(chapter("**An operator's key**"))
    stack.kolm("retention", "--days", "365")


def test_the_log_moves_as_written_and_an_old_dump_is_refused(stack: Stack) -> None:
    moving = chapter("## Backup and restore")
    stack.type(moving)
    before = receipts(stack)
    dump = stack.folder.parent / "ledger.dump"
    old = dump.read_bytes()
    made = generate(stack, "After the dump")
    wait(lambda: made in receipts(stack), lambda: f"{made} is not in the ledger")
    lines = moving.splitlines()
    restore = next(index for index, line in enumerate(lines) if "dropdb" in line)
    stack.type("\n".join(lines[: restore - 1]))  # stops the ledger, dumps the newest
    new = dump.read_bytes()
    dump.write_bytes(old)
    stack.type("\n".join(lines[restore - 1 : restore + 1]) + "\n    docker compose start ledger")
    wait(
        lambda: "the database is older than the log" in stack.compose("logs", "--no-color", "--tail", "50", "ledger"),
        lambda: stack.compose("logs", "--no-color", "--tail", "50", "ledger"),
    )
    dump.write_bytes(new)
    stack.type("    docker compose stop ledger\n" + "\n".join(lines[restore - 1 :]))
    assert sorted(receipts(stack)) == sorted([*before, made])


@pytest.mark.parametrize("service", ["postgres", *OURS, "monitor"])
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
    before = sorted(served(stack))
    answers: set[str] = set()

    def both_serve() -> bool:
        """The HTTP front finds the new one by itself, within the age of a connection."""
        answers.update(complete(stack) for _ in range(4))
        return all(now > then for now, then in zip(sorted(served(stack)), before, strict=True))

    wait(both_serve, lambda: f"{before}, {served(stack)}")
    assert len(answers) == 1
    stack.up("--scale", "generation=1")


def test_a_stop_is_graceful_and_the_log_goes_on_after_it_with_new_keys(stack: Stack) -> None:
    before = receipts(stack)
    stop, rest = chapter("Signing keys, with the services stopped").split("stop\n", 1)
    stack.type(f"{stop}stop")
    assert {one["State"]["ExitCode"] for service in (*OURS, "monitor") for one in stack.inspect(service)} == {0}
    stack.type(rest)
    stack.up()
    made = generate(stack, "With new keys")
    wait(lambda: made in receipts(stack), lambda: f"{made} is not in the ledger")
    assert sorted(receipts(stack)) == sorted([*before, made])
    take_trusted_keys(stack)
    stack.kolm("ledger", "verify")
