"""The stack of docker-compose.yml as a test drives it: real containers, `kolm` on this machine before them."""

from __future__ import annotations

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

from tests.compose.file import ROOT, SERVICES, defaulted

PROJECT = "kolm-test"
PATIENCE = 600.0  # seconds; only a stack that does not come up gets there
_PINNED = re.compile(r"\$\{(\w+_IMAGE):-([^@}]+)@sha256:[0-9a-f]{64}\}")


def compose_command() -> list[str]:
    """`docker compose`, or the older `docker-compose`; empty where there is neither, or no engine."""
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
    """One project of containers. Every method raises AssertionError with what was said where a command fails."""

    def __init__(self, command: list[str], folder: Path) -> None:
        """`folder` keeps the trusted keys of the caller; what the pages say to type is typed beside it."""
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
