"""Hosts on one machine: a network namespace each, and `tests.cluster.wire` between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.wire import Weather, address
from tests.e2e.command import ENVIRONMENT, until

_START_SECONDS = 300.0  # of all services together; only a test that fails gets there

HERE = "here"
"""The host that this process is on."""


@dataclass(slots=True)
class Network:
    """Hosts by name, each with an address of `198.18.0.0/15`, which RFC 2544 keeps for tests."""

    hosts: dict[str, str]
    folder: Path
    _wire: subprocess.Popen[bytes]
    _prefix: str
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def weather(self, weather: Weather) -> None:
        """From here on."""
        assert self._wire.stdin is not None
        assert self._wire.stdout is not None
        self._wire.stdin.write(weather.to_json().encode() + b"\n")
        self._wire.stdin.flush()
        assert self._wire.stdout.readline() == b"\n", "the wire has ended"

    def within(self, host: str) -> tuple[str, ...]:
        """The words that a command on that host begins with."""
        return ("ip", "netns", "exec", f"{self._prefix}{host}")

    def launch(self, host: str, module: str, flags: Sequence[str], environment: dict[str, str] | None = None) -> None:
        """Start a service, on port 50051 of its host."""
        self._ready(host).unlink(missing_ok=True)
        shared = (f"--listen={self.hosts[host]}:50051", f"--ready-file={self._ready(host)}", "--insecure")
        command = [*self.within(host), sys.executable, "-m", module, *flags, *shared]
        with (self.folder / f"{host}.log").open("ab") as log:
            self._processes[host] = subprocess.Popen(
                command, env={**ENVIRONMENT, **(environment or {})}, stderr=log, stdin=subprocess.DEVNULL
            )

    def address(self, host: str) -> str:
        """The address of the service that was launched there, once it serves."""

        def ready() -> bool:
            log = (self.folder / f"{host}.log").read_text
            assert self._processes[host].poll() is None, f"{host} has ended:\n{log()[-2000:]}"
            return self._ready(host).exists()

        until(ready, _START_SECONDS)
        return f"{self.hosts[host]}:50051"

    def kill(self, host: str) -> None:
        """Its service, without a word to it."""
        process = self._processes.pop(host)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """All services, as `kill` does."""
        for host in list(self._processes):
            self.kill(host)

    def _ready(self, host: str) -> Path:
        return self.folder / f"{host}.address"


@contextmanager
def network(folder: Path, *names: str) -> Iterator[Network]:
    """A network with these hosts, and this process on it as HERE. Skips where namespaces cannot be made."""
    prefix, subnet = f"kolm{os.getpid()}", f"198.18.{os.getpid() % 256}"
    numbers = {name: number for number, name in enumerate((HERE, *names), start=1)}
    hub = f"{prefix}hub"
    with ExitStack() as stack:
        for name in ("hub", *names):
            _make(f"{prefix}{name}")
            stack.callback(_ip, "netns", "delete", f"{prefix}{name}")
        for name, number in numbers.items():
            place = (str(os.getpid()), prefix) if name == HERE else (f"{prefix}{name}", "eth0")
            _connect(hub, name, place, number, f"{subnet}.{number}/24")
        wire = subprocess.Popen(
            ["ip", "netns", "exec", hub, sys.executable, "-m", "tests.cluster.wire", json.dumps(numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(wire.communicate)  # which ends its stdin
        running = Network({name: f"{subnet}.{number}" for name, number in numbers.items()}, folder, wire, prefix)
        stack.callback(running.stop)
        running.weather(Weather())
        yield running


def _make(space: str) -> None:
    """An empty namespace. Skips where there can be none."""
    try:
        _ip("netns", "add", space)
    except (OSError, subprocess.CalledProcessError) as error:
        why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        pytest.skip(f"no network namespaces here (they take root, CAP_SYS_ADMIN and iproute2): {why}")
    _ip("-n", space, "link", "set", "lo", "up")


def _connect(hub: str, name: str, place: tuple[str, str], number: int, network: str) -> None:
    """A cable from the hub, where its end has the host's name, to an interface in the host's namespace."""
    space, interface = place
    _ip("-n", hub, "link", "add", name, "type", "veth", "peer", "name", "cable", "address", address(number))
    _ip("-n", hub, "link", "set", "cable", "netns", space, "name", interface)
    _ip("-n", hub, "link", "set", name, "up")
    inside = () if space.isdecimal() else ("-n", space)
    _ip(*inside, "address", "add", network, "dev", interface)
    _ip(*inside, "link", "set", interface, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
