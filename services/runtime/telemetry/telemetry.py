"""TelemetryService: the metrics of this process over gRPC, for callers that cannot reach its metrics port."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from kolm.telemetry.v1 import telemetry_pb2 as pb
from kolm.telemetry.v1.telemetry_pb2_grpc import TelemetryServiceServicer

SERVICE = "kolm.telemetry.v1.TelemetryService"


class TelemetryServicer(TelemetryServiceServicer):
    """Of one registry. Its metrics are asked on a thread, as for a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def GetMetrics(  # noqa: N802 the protocol's name
        self, request: pb.GetMetricsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetMetricsResponse:
        return await asyncio.to_thread(self._metrics)

    def _metrics(self) -> pb.GetMetricsResponse:
        samples = (sample for family in self._registry.collect() for sample in family.samples)
        return pb.GetMetricsResponse(
            samples=[
                pb.Sample(name=sample.name, labels=sample.labels, value=sample.value)
                for sample in samples
                if not sample.name.endswith("_created")
            ]
        )
