"""The engine's thread: submissions and cancellations from outside, and what a fault in it does to its callers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.engine import Engine
from services.generation.engine.events import Chunk, Event, Finished
from services.generation.engine.request import EngineRequest, EngineStopped, InvalidRequest, SamplingParams
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.decoder import LetterDecoder
from tests.fakes.engine_runs import CHEAP_ROWS, submit
from tests.fakes.table_target import TableTarget

SOON = 30.0  # seconds after which a test that waits has failed


class GatedTarget(TableTarget):
    """Waits in its passes for a gate, and fails when told to."""

    def __init__(self) -> None:
        super().__init__(np.zeros((4, 4), np.float32))
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self.passes = 0

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        assert self.gate.wait(SOON)
        self.passes += 1
        if self.broken:
            raise RuntimeError("the device is gone")
        return super().forward(rows, feature_layers)


@pytest.fixture
def target() -> GatedTarget:
    return GatedTarget()


@pytest.fixture
def engine(target: GatedTarget) -> Iterator[Engine]:
    clock = iter(range(10**9))
    core = EngineCore(target, {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: float(next(clock)))
    engine = Engine(core)
    engine.start()
    yield engine
    target.gate.set()
    engine.stop()
    assert not engine.alive


def request(name: str = "r", max_tokens: int = 5) -> EngineRequest:
    return EngineRequest(name, (0,), SamplingParams(max_tokens=max_tokens))


def last(events: queue.Queue[Event]) -> Finished:
    while isinstance(event := events.get(timeout=SOON), Chunk):
        pass
    return event


def test_events_arrive_from_the_engine_thread(engine: Engine) -> None:
    events: queue.Queue[Event] = queue.Queue()
    submit(engine, request(), events.put)
    assert last(events).outcome.token_ids == (0,) * 5
    assert engine.load().blocks_used == 0


def test_an_invalid_request_raises_where_it_was_submitted(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens"):
        submit(engine, request(max_tokens=0), print)
    assert engine.alive


def held_after_its_first_chunk(engine: Engine, target: GatedTarget) -> queue.Queue[Event]:
    """Submit a long request; its engine waits in the pass after the first chunk."""
    events: queue.Queue[Event] = queue.Queue()
    seen = threading.Event()

    def sink(event: Event) -> None:
        if not seen.is_set():
            target.gate.clear()
        seen.set()
        events.put(event)

    submit(engine, request(max_tokens=4000), sink)
    assert seen.wait(SOON)
    return events


def test_a_cancelled_request_ends_and_its_place_is_free(engine: Engine, target: GatedTarget) -> None:
    events = held_after_its_first_chunk(engine, target)
    engine.cancel("r")
    target.gate.set()
    assert last(events).outcome.finish_reason == "cancelled"
    assert engine.load().running == 0


def test_stopping_ends_what_runs_as_cancelled(engine: Engine, target: GatedTarget) -> None:
    events = held_after_its_first_chunk(engine, target)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    while engine.alive:
        stopping.join(0.01)
    target.gate.set()
    stopping.join(SOON)
    assert last(events).outcome.finish_reason == "cancelled"
    with pytest.raises(EngineStopped):
        submit(engine, request("late"), events.put)


def test_a_fault_in_the_target_ends_every_request_with_it(engine: Engine, target: GatedTarget) -> None:
    events: queue.Queue[Event] = queue.Queue()
    target.gate.clear()
    submit(engine, request("a", 4000), events.put)
    target.broken = True
    target.gate.set()
    finished = last(events)
    assert finished.outcome.finish_reason == "error"
    assert "the device is gone" in str(finished.outcome.error)
    engine.stop()
    with pytest.raises(EngineStopped):
        submit(engine, request("late"), events.put)
