"""The engine's thread: submissions and cancellations from outside, and the effect of a fault on its callers."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from unittest.mock import Mock

import numpy as np
import pytest

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.engine import AsyncEngine, EngineThread
from services.generation.engine.events import Chunk, Event, Finished
from services.generation.engine.request import EngineFull, EngineRequest, EngineStopped, InvalidRequest, SamplingParams
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.drafters import LetterDecoder, Panic
from tests.fakes.engine_runs import CHEAP_ROWS, submit
from tests.fakes.table_target import TableTarget

SOON = 30.0  # seconds after which a test that waits has failed


class GatedTarget(TableTarget):
    """Waits in its passes for a gate, and fails if it is `broken`."""

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
def core(target: GatedTarget) -> EngineCore:
    clock = iter(range(10**9))
    return EngineCore(target, {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: float(next(clock)))


@pytest.fixture
def engine(core: EngineCore, target: GatedTarget) -> Iterator[EngineThread]:
    engine = EngineThread(core)
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


def test_events_arrive_from_the_engine_thread(engine: EngineThread, core: EngineCore) -> None:
    events: queue.Queue[Event] = queue.Queue()
    submit(engine, request(), events.put)
    assert last(events).outcome.token_ids == (0,) * 5
    assert core.load().blocks_used == 0


def test_an_invalid_request_raises_where_it_was_submitted(engine: EngineThread) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens"):
        submit(engine, request(max_tokens=0), print)
    assert engine.alive


def held_after_its_first_chunk(engine: EngineThread, target: GatedTarget) -> queue.Queue[Event]:
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


def test_a_cancelled_request_ends_and_its_place_is_free(
    engine: EngineThread, core: EngineCore, target: GatedTarget
) -> None:
    events = held_after_its_first_chunk(engine, target)
    engine.cancel("r")
    target.gate.set()
    assert last(events).outcome.finish_reason == "cancelled"
    assert core.load().running == 0


def test_an_idle_engine_releases_memory(core: EngineCore, target: GatedTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(target, "release_memory", released.set)
    engine, events = EngineThread(core, idle_seconds=0.0), queue.Queue[Event]()
    engine.start()
    assert released.wait(SOON)
    submit(engine, request(), events.put)
    assert last(events).outcome.token_ids == (0,) * 5
    engine.stop()


def test_an_idle_engine_works_until_that_is_done(target: GatedTarget) -> None:
    tries, done = list[bool](), threading.Event()

    def work(request_waits: Callable[[], bool]) -> bool:
        if not tries:
            engine.submit_all((request(),), events.put, lambda error: None)
        tries.append(request_waits())
        if len(tries) == 3:
            done.set()
        return len(tries) == 3

    core = EngineCore(target, {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: 0.0)
    engine, events = EngineThread(core, idle_work=work, idle_seconds=0.0), queue.Queue[Event]()
    engine.start()
    assert done.wait(SOON)
    assert last(events).outcome.token_ids == (0,) * 5
    engine.stop()
    assert tries == [True, False, False]


def test_stopping_ends_what_runs_as_cancelled(engine: EngineThread, target: GatedTarget) -> None:
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


def test_a_fault_in_the_target_ends_every_request_with_it(engine: EngineThread, target: GatedTarget) -> None:
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


class Running:
    """An engine whose passes wait for a gate, and a clock for hand-overs."""

    def __init__(self, **bounds: int) -> None:
        self.target, self.now, self.handed_over = GatedTarget(), 0.0, 0
        core = EngineCore(self.target, {}, LetterDecoder, CHEAP_ROWS, EngineSettings(**bounds), lambda: 0.0)  # type: ignore[arg-type]
        self.engine = AsyncEngine(core, lambda: self.now)
        arrived = self.engine._arrived

        def counted(events: list[object]) -> None:
            self.handed_over += 1
            arrived(events)  # type: ignore[arg-type]

        self.engine._arrived = counted  # type: ignore[method-assign, assignment]

    def every_pass_takes(self, seconds: float) -> None:
        forward = self.target.forward

        def ticking(*arguments: object) -> object:
            self.now += seconds
            return forward(*arguments)  # type: ignore[arg-type]

        self.target.forward = ticking  # type: ignore[method-assign, assignment]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running(max_waiting=20)
    yield running
    running.target.gate.set()
    await running.engine.stop()


def choices(count: int, max_tokens: int = 5, name: str = "r") -> list[EngineRequest]:
    return [EngineRequest(name, (0,), SamplingParams(max_tokens=max_tokens), choice) for choice in range(count)]


async def ended(events: asyncio.Queue[Event], count: int) -> list[Event]:
    found: list[Event] = []
    while sum(isinstance(event, Finished) for event in found) < count:
        found.append(await events.get())
    return found


async def test_all_choices_are_in_the_first_pass(running: Running) -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    tickets = await running.engine.submit_all(choices(4), events.put_nowait)
    outcomes = [event.outcome for event in await ended(events, 4) if isinstance(event, Finished)]
    assert [ticket.alone for ticket in tickets] == [False] * 4
    assert [outcome.token_ids for outcome in outcomes] == [(0,) * 5] * 4
    assert running.engine.totals.passes == 20
    assert running.target.passes == 5


@pytest.mark.parametrize("fault", [Panic(), ValueError()])
async def test_a_fault_while_a_request_is_queued_is_its_callers_exception(
    running: Running, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineCore, "_sequence", Mock(side_effect=fault))
    with pytest.raises((RuntimeError, ValueError)):
        await running.engine.submit_all(choices(1), asyncio.Queue[Event]().put_nowait)
    assert running.engine.alive


@pytest.mark.parametrize(("refused", "count"), [(InvalidRequest, 3), (EngineFull, 60)])
async def test_none_is_queued_where_one_is_refused(running: Running, refused: type[Exception], count: int) -> None:
    asked = choices(count)
    if refused is InvalidRequest:
        asked[-1] = choices(1, max_tokens=0)[0]
    with pytest.raises(refused):
        await running.engine.submit_all(asked, asyncio.Queue[Event]().put_nowait)
    assert (running.engine.load().waiting, running.engine.load().running) == (0, 0)
    (outcome, ticket) = await running.engine.complete(choices(1)[0])
    assert (outcome.finish_reason, ticket.alone) == ("length", True)


async def test_a_request_that_is_cancelled_in_the_turn_of_its_submission_ends(running: Running) -> None:
    completing = asyncio.create_task(running.engine.complete(choices(1, max_tokens=4000)[0]))
    asyncio.get_running_loop().call_soon(running.engine.cancel, choices(1)[0].request_id)
    outcome, _ = await completing
    assert outcome.finish_reason == "cancelled"


async def test_the_events_of_a_pass_reach_the_loop_at_once(running: Running) -> None:
    running.every_pass_takes(0.03)
    events: asyncio.Queue[Event] = asyncio.Queue()
    await running.engine.submit_all(choices(4), events.put_nowait)
    assert len(await ended(events, 4)) == 4 * 6
    assert running.handed_over == 5


@pytest.mark.parametrize("count", [1, 8])
async def test_chunks_are_put_together_but_the_first_and_the_last(running: Running, count: int) -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    await running.engine.submit_all(choices(count, max_tokens=40), events.put_nowait)
    found = await ended(events, count)
    for choice in range(count):
        own = [event for event in found if isinstance(event, Chunk) and event.choice == choice]
        assert [len(chunk.token_ids) for chunk in own] == [1, 39]
        assert "".join(chunk.text for chunk in own) == "a" * 40


@pytest.mark.parametrize("count", [1, 8])
async def test_chunks_are_not_held_for_long(running: Running, count: int) -> None:
    running.every_pass_takes(0.011)
    events: asyncio.Queue[Event] = asyncio.Queue()
    await running.engine.submit_all(choices(count, max_tokens=9), events.put_nowait)
    own = [event for event in await ended(events, count) if isinstance(event, Chunk) and event.choice == 0]
    assert [len(chunk.token_ids) for chunk in own] == [1, 2, 2, 2, 2]
