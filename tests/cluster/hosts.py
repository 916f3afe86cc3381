"""Hosts on one machine: a network namespace each, and `tests.cluster.hosts` between them."""

from __future__ import annotations

import heapq
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.e2e.command import own_environment, until
from tests.forked import Forked

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
    _processes: dict[str, Forked] = field(default_factory=dict)

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
        inside = ("tests.cluster.inside", f"{self._prefix}{host}", str(self.folder / f"{host}.log"), module)
        own = {**own_environment(), **(environment or {})}
        self._processes[host] = Forked(*inside, *flags, *shared, environment=own)

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
            ["ip", "netns", "exec", hub, sys.executable, "-m", "tests.cluster.hosts", json.dumps(numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(wire.communicate)  # which ends its stdin
        running = Network({name: f"{subnet}.{number}" for name, number in numbers.items()}, folder, wire, prefix)
        stack.callback(running.stop)
        running.weather(Weather())
        yield running


def _make(space: str) -> None:
    """Make an empty namespace, or skip if the machine allows none."""
    try:
        _ip("netns", "add", space)
    except (OSError, subprocess.CalledProcessError) as error:
        why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        pytest.skip(f"no network namespaces here (they take root, CAP_SYS_ADMIN and iproute2): {why}")
    _ip("-n", space, "link", "set", "lo", "up")


def _connect(hub: str, name: str, place: tuple[str, str], number: int, network: str) -> None:
    """Connect the hub's end, named after the host, to an interface in the host's namespace."""
    space, interface = place
    _ip("-n", hub, "link", "add", name, "type", "veth", "peer", "name", "cable", "address", address(number))
    _ip("-n", hub, "link", "set", "cable", "netns", space, "name", interface)
    _ip("-n", hub, "link", "set", name, "up")
    inside = () if space.isdecimal() else ("-n", space)
    _ip(*inside, "address", "add", network, "dev", interface)
    _ip(*inside, "link", "set", interface, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


_SOL_PACKET = 263
_VNET_HEADER = (
    15  # PACKET_VNET_HDR of linux/if_packet.h: checksums and segments that the sender's kernel left to be done
)
_HEADER_BYTES = 10  # struct virtio_net_hdr
_ALL_PROTOCOLS = 0x0003  # ETH_P_ALL
_LONGEST = 1 << 17
_TO_MANY = 0x01  # of the first byte of an address: broadcast and multicast


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """Frames from one host to another are lost that have `least` bytes or more: all, or with 250 all but TCP's own."""

    source: str
    target: str
    least: int = 0


@dataclass(frozen=True, slots=True)
class Weather:
    """Loss and delay of the frames that no cut stops: a share `loss` is lost, the rest takes `delay[0]` to
    `delay[1]` seconds, so that frames overtake each other.
    """

    cuts: tuple[Cut, ...] = ()
    delay: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Weather:
        read = json.loads(line)
        return cls(tuple(Cut(**cut) for cut in read["cuts"]), tuple(read["delay"]), read["loss"])

    def stops(self, source: str, target: str, size: int) -> bool:
        return any((cut.source, cut.target) == (source, target) and size >= cut.least for cut in self.cuts)


def address(number: int) -> str:
    """The hardware address of a host."""
    return f"02:00:00:00:00:{number:02x}"


class Wire:
    """A switch with a port for each host: the interface of the host's name, in this process's namespace."""

    def __init__(self, hosts: dict[str, int]) -> None:
        """`hosts` have numbers, which make their hardware addresses."""
        self._ports = {name: _port(name) for name in hosts}
        self._names = {bytes.fromhex(address(number).replace(":", "")): name for name, number in hosts.items()}
        self._weather = Weather()
        self._random = random.Random(7)
        self._late: list[tuple[float, int, str, bytes]] = []  # due time, order, destination, frame
        self._count = 0

    def run(self) -> None:
        """Until stdin ends."""
        with selectors.DefaultSelector() as selector:
            for name, port in self._ports.items():
                selector.register(port, selectors.EVENT_READ, name)
            selector.register(0, selectors.EVENT_READ, None)
            while True:
                for key, _ in selector.select(self._pause()):
                    if key.data is not None:
                        self._receive(key.data)
                    elif not self._told():
                        return
                self._deliver()

    def _told(self) -> bool:
        lines = os.read(0, _LONGEST).decode().splitlines()
        for line in lines:
            self._weather = Weather.from_json(line)
            os.write(1, b"\n")
        return bool(lines)

    def _pause(self) -> float | None:
        return max(0.0, self._late[0][0] - time.monotonic()) if self._late else None

    def _receive(self, sender: str) -> None:
        frame, place = self._ports[sender].recvfrom(_LONGEST)
        if place[2] == socket.PACKET_OUTGOING:  # of this namespace's own kernel
            return
        target = frame[_HEADER_BYTES : _HEADER_BYTES + 6]
        others = [name for name in self._ports if name != sender]
        for name in others if target[0] & _TO_MANY else [self._names.get(target, sender)]:
            stopped = self._weather.stops(sender, name, len(frame) - _HEADER_BYTES)
            if name != sender and not stopped and self._random.random() >= self._weather.loss:
                self._count += 1
                due = time.monotonic() + self._random.uniform(*self._weather.delay)
                heapq.heappush(self._late, (due, self._count, name, frame))

    def _deliver(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            *_, name, frame = heapq.heappop(self._late)
            try:
                self._ports[name].send(frame)
            except OSError:  # a full queue, a host that is gone: lost, as on any wire
                continue


def _port(interface: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    port.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    port.bind((interface, 0))
    return port


if __name__ == "__main__":
    Wire(json.loads(sys.argv[1])).run()
