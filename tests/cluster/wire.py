"""The network between hosts of `tests.cluster.hosts`: forwards frames, late, some not at all, and none across a cut.

`ip netns exec HUB python -m tests.cluster.wire '{"host": 1, …}'`. Each line on stdin is a `Weather` as JSON, answered
by an empty line once it holds. It does what `tc netem` does in kernels that have it; many have not.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass

_SOL_PACKET = 263
_VNET_HEADER = (
    15  # PACKET_VNET_HDR of linux/if_packet.h: checksums and segments that the sender's kernel left to be done
)
_HEADER_BYTES = 10  # struct virtio_net_hdr
_ALL_PROTOCOLS = 0x0003  # ETH_P_ALL
_LONGEST = 1 << 17
_EVERYBODY = 0x01  # of the first byte of an address: broadcast and multicast


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """Frames from one host to another are lost that have `least` bytes or more: all, or with 250 all but TCP's own."""

    source: str
    target: str
    least: int = 0


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to frames that no cut stops: a share `loss` is lost, the rest takes `delay[0]` to `delay[1]`
    seconds, so that they overtake each other.
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
        self._late: list[tuple[float, int, str, bytes]] = []  # due, order, to whom, what
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
        everybody = [name for name in self._ports if name != sender]
        for name in everybody if target[0] & _EVERYBODY else [self._names.get(target, sender)]:
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
