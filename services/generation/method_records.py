"""What `auto` has learned, as messages."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.duration_pb2 import Duration

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.belief import Beliefs
from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.tally import Kind, Record, Tally


def method_records(auto: AutoDrafter) -> list[pb.MethodRecord]:
    """By kind of request, what should pay best first. From any thread, while the engine goes on."""
    records = [message for kind, record in list(auto.records.items()) for message in _messages(kind, record)]
    return sorted(records, key=lambda each: (each.adapter_cid, each.sampled, each.resembles, -each.expected_gain))


def _messages(kind: Kind, record: Record) -> Iterator[pb.MethodRecord]:
    tallies, compared = record.tallies, record.compared
    arms = tuple(dict.fromkeys((*tallies, *(arm for pair in compared for arm in pair))))
    beliefs = Beliefs(arms, compared)
    for arm in arms:
        among = sum(evidence.weight for pair, evidence in compared.items() if arm in pair and OFF not in pair)
        yield _message(kind, arm, tallies.get(arm, Tally()), beliefs, among)


def _message(kind: Kind, arm: Arm, tally: Tally, beliefs: Beliefs, comparisons: float) -> pb.MethodRecord:
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
        gain=tally.gain(0.0, 0.0) if tally.passes else 0.0,
        expected_gain=beliefs.gain(arm),
        expected_gain_error=beliefs.error(arm),
        comparisons=comparisons,
    )
