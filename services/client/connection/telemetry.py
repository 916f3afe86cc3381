"""The metrics of a server, asked over gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kolm.telemetry.v1 import telemetry_pb2 as pb
from kolm.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceStub
from services.client.connection.channel import Connection


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
        """The sum over the series of that name that have these labels; 0 where there are none."""
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
