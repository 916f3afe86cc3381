"""What `auto` has learned, as messages."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.tally import Kind, Tally


def method_records(auto: AutoDrafter) -> list[pb.MethodRecord]:
    """By kind of request, what pays best first. From any thread, while the engine goes on."""
    records = [
        _message(kind, arm, tally)
        for kind, record in list(auto.records.items())
        for arm, tally in list(record.tallies.items())
    ]
    return sorted(records, key=lambda record: (record.adapter_cid, record.sampled, record.resembles, -record.gain))


def _message(kind: Kind, arm: Arm, tally: Tally) -> pb.MethodRecord:
    duration = Duration()
    duration.FromNanoseconds(round(tally.milliseconds * 1e6))
    return pb.MethodRecord(
        adapter_cid=kind.adapter,
        sampled=kind.sampled,
        resembles=kind.resembles,
        method=arm.method,
        k=arm.k,
        head_cid=arm.drafter.partition("/")[2] or None,
        passes=tally.passes,
        tokens=tally.tokens,
        duration=duration,
        gain=tally.tokens / tally.cost,
    )
