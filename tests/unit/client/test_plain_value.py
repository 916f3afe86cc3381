"""Values take the fields of messages that have their names."""

from __future__ import annotations

import pytest

from kolm.generation.v1 import generation_pb2, speculation_pb2
from kolm.ledger.v1 import documents_pb2
from services.client.generation.completion import Metrics
from services.client.ledger.log import Halt, Scope
from services.client.plain_value import plain_value


def test_absent_fields_are_none_repeated_ones_tuples_and_maps_dicts() -> None:
    message = speculation_pb2.SpeculationMetrics(num_accepted_tokens_per_pos=[3, 1], passes_by_method={"rest": 2})
    metrics = plain_value(Metrics, message)
    assert (metrics.wall_clock_speedup, metrics.num_accepted_tokens_per_pos) == (None, (3, 1))
    assert (metrics.passes_by_method, metrics.num_drafts) == ({"rest": 2}, 0)
    assert plain_value(Metrics, speculation_pb2.SpeculationMetrics(wall_clock_speedup=0.0)).wall_clock_speedup == 0.0


def test_a_given_member_comes_before_the_message_s() -> None:
    scope = Scope("base", "rest", None)
    halt = plain_value(Halt, documents_pb2.Halt(halt_index=7, reason="why"), scope=scope, reason="because")
    assert halt == Halt(scope, 7, 0, "because")


def test_a_member_that_nobody_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="num_drafts"):
        plain_value(Metrics, generation_pb2.Usage())
