"""`python -m services.client.health HOST:PORT [SERVICE]`: exit 0 if the server is SERVING, else 5. Also its metrics.

For health checks of containers and scripts; SERVICE is a full service name, by default the whole server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from kolm.telemetry.v1 import telemetry_pb2 as pb
from kolm.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceStub
from services.client.channel import Connection
from services.client.errors import KolmError

EXIT_OK, EXIT_USAGE, EXIT_UNAVAILABLE = 0, 2, 5


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float


class Samples:
    """The metrics of a server at one moment."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._samples = tuple(samples)

    def total(self, name: str, **labels: str) -> float:
        """The sum over the series of that name that have these labels; 0 without such series."""
        return sum(each.value for each in self._named(name) if labels.items() <= each.labels.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums over the series of that name, for each value of `label`."""
        sums: dict[str, float] = {}
        for each in self._named(name):
            place = each.labels.get(label, "")
            sums[place] = sums.get(place, 0.0) + each.value
        return sums

    def _named(self, name: str) -> Iterable[Sample]:
        return (each for each in self._samples if each.name == name)


def read_metrics(connection: Connection, timeout: float = 10.0) -> Samples:
    """Reads the server's metrics; `timeout` in seconds. Raises KolmError."""
    stub = TelemetryServiceStub(connection.channel)
    answer = connection.call(stub.GetMetrics, pb.GetMetricsRequest(), timeout)
    return Samples(Sample(each.name, dict(each.labels), each.value) for each in answer.samples)


def main(arguments: list[str]) -> int:
    """Ask once and wait at most five seconds; if it does not serve, print why on stderr."""
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return EXIT_USAGE
    target, service = arguments[0], (*arguments[1:], "")[0]
    try:
        with closing(Connection(target)) as connection:
            if connection.serving(service):
                return EXIT_OK
            print(f"{target} does not serve {service}".rstrip(), file=sys.stderr)
    except KolmError as error:
        print(f"{target}: {error}", file=sys.stderr)
    return EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
