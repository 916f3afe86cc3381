"""docker-compose.yml, as other tests read it."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ["ledger", "registry", "generation", "auditor", "explorer", "http", "witness"]

_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


def defaulted(value: object) -> str:
    """The value if no variable is set."""
    return _VARIABLE.sub(r"\1", str(value)).replace("$$", "$")


_UNITS = {"m": 2**20, "g": 2**30}


def service_of(container: dict[str, Any]) -> str:
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def expect_hardened(container: dict[str, Any]) -> None:
    """Only the rights that the file gives, bounded, reachable from this machine alone, secrets in files."""
    service, host, config = SERVICES[service_of(container)], container["HostConfig"], container["Config"]
    added = set(service.get("cap_add", ()))
    assert (host["ReadonlyRootfs"], host["Privileged"], host["CapDrop"]) == (True, False, ["ALL"])
    assert {capability.removeprefix("CAP_") for capability in host["CapAdd"] or ()} == added
    assert host["SecurityOpt"] == service["security_opt"] == ["no-new-privileges:true"]
    assert config["User"] == service.get("user", "" if added else "kolm")
    assert host["Memory"] == _bytes(service["mem_limit"])
    assert host["PidsLimit"] == service["pids_limit"]
    assert all(place["HostIp"] == "127.0.0.1" for places in host["PortBindings"].values() for place in places)
    _expect_mounts(container)
    _expect_secrets(container)


def _bytes(limit: str) -> int:
    limit = defaulted(limit)
    return int(limit[:-1]) * _UNITS[limit[-1]]


def _expect_mounts(container: dict[str, Any]) -> None:
    writable = {mount["Destination"] for mount in container["Mounts"] if mount["RW"]}
    service = SERVICES[service_of(container)]
    volumes = [defaulted(volume).split(":") for volume in service.get("volumes", ())]
    assert writable == {parts[1] for parts in volumes if parts[-1] != "ro"}
    assert not any(mount["RW"] for mount in container["Mounts"] if mount["Type"] == "bind")


def _expect_secrets(container: dict[str, Any]) -> None:
    wanted = set(SERVICES[service_of(container)].get("secrets", ()))
    mounted = {
        mount["Destination"] for mount in container["Mounts"] if mount["Destination"].startswith("/run/secrets/")
    }
    assert mounted == {f"/run/secrets/{name}" for name in wanted}
    values = [(ROOT / secret["file"]).read_text("utf-8") for secret in COMPOSE["secrets"].values()]
    seen = (*container["Config"]["Env"], *container["Args"])
    assert not any(value in each for value in values for each in seen)


def expect_service(container: dict[str, Any]) -> None:
    """Checked, started again, given time to stop."""
    service, config = SERVICES[service_of(container)], container["Config"]
    assert container["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert config["StopTimeout"] == int(service["stop_grace_period"].removesuffix("s"))
    if "healthcheck" in service:
        assert config["Healthcheck"]["Test"] == service["healthcheck"]["test"]
        assert container["State"]["Health"]["Status"] == "healthy"


def expect_order(containers: list[dict[str, Any]]) -> None:
    """Nothing was started before what it depends on: before the end of a job, or the start of a service."""
    states = {service_of(each): each["State"] for each in containers}
    for name, state in states.items():
        for needed, how in SERVICES[name].get("depends_on", {}).items():
            ends = how["condition"] == "service_completed_successfully"
            assert states[needed]["FinishedAt" if ends else "StartedAt"] <= state["StartedAt"], (name, needed)
            assert not ends or states[needed]["ExitCode"] == 0


PROJECT = "kolm-test"
PATIENCE = 600.0  # seconds; only a stack that does not come up gets there
_PINNED = re.compile(r"\$\{(\w+_IMAGE):-([^@}]+)@sha256:[0-9a-f]{64}\}")


def compose_command() -> list[str]:
    """`docker compose`, or the older `docker-compose`; empty if neither or no engine is installed."""
    if shutil.which("docker") is None or _run(["docker", "info"]).returncode != 0:
        return []
    if _run(["docker", "compose", "version"]).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else []


def _run(command: list[str], **named: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **named)


def _stand_ins() -> dict[str, str]:
    """The variables that put images made on this machine, which no registry knows, in the place of pinned ones."""
    found = {}
    for variable, tag in set(_PINNED.findall((ROOT / "docker-compose.yml").read_text("utf-8"))):
        known = _run(["docker", "image", "inspect", "--format", "{{len .RepoDigests}}", tag])
        if variable not in os.environ and known.stdout.strip() == "0":
            found[variable] = tag
    return found


class Stack:
    """One project of containers. Every method raises AssertionError with a failed command's output."""

    def __init__(self, command: list[str], folder: Path) -> None:
        """`folder` keeps the caller's trusted keys; the pages' commands run in its parent."""
        self.folder = folder
        self._command = [*command, "--file", str(ROOT / "docker-compose.yml"), "--project-name", PROJECT]
        self._environment = {
            **os.environ,
            **_stand_ins(),
            "KOLM_GENERATION_PORTS": "50061-50068",
            "KOLM_DATA_DIR": str(folder),
        }
        self.token = ""

    def compose(self, *arguments: str, profile: str | None = None) -> str:
        """Its stdout."""
        chosen = () if profile is None else ("--profile", profile)
        done = _run([*self._command, *chosen, *arguments], cwd=ROOT, env=self._environment)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def up(self, *more: str, profile: str | None = None) -> None:
        """Returns once every container with a health check is healthy."""
        self.compose("up", "--detach", *more, profile=profile)
        wait(lambda: not self._unwell(), lambda: f"not healthy: {self._unwell()}")

    def _unwell(self) -> list[str]:
        states = ((one["Name"], one["State"]) for one in self.inspect())
        return [
            name
            for name, state in states
            if (state.get("Health", {}).get("Status", "healthy") != "healthy")
            or (not state["Running"] and state["ExitCode"] != 0)
        ]

    def inspect(self, service: str | None = None) -> list[dict[str, Any]]:
        """The engine's report on the containers of a service, or of all."""
        names = self.compose("ps", "--all", "--quiet", *([service] if service else [])).split()
        return json.loads(_run(["docker", "inspect", *names]).stdout) if names else []

    def has_image(self, service: str) -> bool:
        """Whether the image of a service is on this machine."""
        named = str(SERVICES[service]["image"])
        image = self._environment.get(named[2:].split(":-")[0], defaulted(named))
        return _run(["docker", "image", "inspect", image]).returncode == 0

    def kill(self, service: str) -> None:
        """SIGKILL to the first container of a service."""
        name = self.inspect(service)[0]["Name"].lstrip("/")
        assert _run(["docker", "kill", name]).returncode == 0

    def inside(self, container: dict[str, Any], *command: str) -> str:
        """The output of a command in a container."""
        done = _run(["docker", "exec", container["Name"].lstrip("/"), *command])
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def type(self, page: str) -> str:
        """Runs the indented lines of a page in a shell, where `docker compose` is this stack's. Returns output."""
        script = "\n".join(line[4:] for line in page.splitlines() if line.startswith("    "))
        assert script
        tools = self.folder.parent / "tools"
        tools.mkdir(exist_ok=True)
        (tools / "docker").write_text(f"""#!/bin/sh
[ "$1" = compose ] || exec {shutil.which("docker")} "$@"
shift; exec {" ".join(self._command)} "$@"
""")
        (tools / "docker").chmod(0o755)
        (tools / "kolm").write_text(f'#!/bin/sh\nexec {sys.executable} -m services.cli "$@"\n')
        (tools / "kolm").chmod(0o755)
        environment = {
            **self._environment,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'protos/gen'}",
        }
        done = _run(["bash", "-euo", "pipefail", "-c", script], cwd=self.folder.parent, env=environment)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def let_in(self, name: str) -> None:
        """Make a token that this machine's `kolm` shows from here on."""
        roles = (word for role in ("generate", "read", "audit", "operate") for word in ("--role", role))
        self.token = self.compose("run", "--rm", "-T", "tokens", "create", name, "--tenant", "*", *roles).split()[-1]
        self._environment["KOLM_TOKEN"] = self.token

    def kolm(self, *arguments: str) -> str:
        """The output of `kolm` on this machine."""
        (place, *_) = self.inspect("generation")[0]["NetworkSettings"]["Ports"]["50051/tcp"]
        self._environment["KOLM_GENERATION"] = f"127.0.0.1:{place['HostPort']}"
        command = [sys.executable, "-m", "services.cli", *arguments]
        done = _run(command, cwd=ROOT, env=self._environment)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout


def wait(until: Callable[[], bool], why: Callable[[], str]) -> None:
    """Until it holds; AssertionError with `why` after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, why()
        time.sleep(1.0)
