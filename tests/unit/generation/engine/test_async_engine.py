"""The engine as an event loop sees it: choices together, events of a pass together, chunks put together under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.engine import AsyncEngine, Engine
from services.generation.engine.events import Chunk, Event, Finished
from services.generation.engine.request import EngineFull, EngineRequest, InvalidRequest, SamplingParams
from tests.fakes.decoder import LetterDecoder
from tests.fakes.engine_runs import CHEAP_ROWS
from tests.unit.generation.engine.test_engine import GatedTarget


class Running:
    """An engine whose passes wait for a gate, and a clock for hand-overs."""

    def __init__(self, **bounds: int) -> None:
        self.target, self.now, self.handed_over = GatedTarget(), 0.0, 0
        core = EngineCore(self.target, {}, LetterDecoder, CHEAP_ROWS, EngineSettings(**bounds), lambda: 0.0)  # type: ignore[arg-type]
        self.thread = Engine(core)
        self.engine = AsyncEngine(self.thread, lambda: self.now)
        arrived = self.engine._arrived

        def counted(events: list[object]) -> None:
            self.handed_over += 1
            arrived(events)  # type: ignore[arg-type]

        self.engine._arrived = counted  # type: ignore[method-assign, assignment]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running(max_waiting=20)
    running.thread.start()
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
    tickets = await running.engine.submit_all(choices(4), events)
    outcomes = [event.outcome for event in await ended(events, 4) if isinstance(event, Finished)]
    assert [ticket.alone for ticket in tickets] == [False] * 4
    assert [outcome.token_ids for outcome in outcomes] == [(0,) * 5] * 4
    assert running.thread.totals.passes == 20
    assert running.target.passes == 5


@pytest.mark.parametrize(("refused", "count"), [(InvalidRequest, 3), (EngineFull, 60)])
async def test_none_is_queued_where_one_is_refused(running: Running, refused: type[Exception], count: int) -> None:
    asked = choices(count)
    if refused is InvalidRequest:
        asked[-1] = choices(1, max_tokens=0)[0]
    with pytest.raises(refused):
        await running.engine.submit_all(asked, asyncio.Queue())
    assert (running.engine.load().waiting, running.engine.load().running) == (0, 0)
    (outcome, ticket) = await running.engine.complete(choices(1)[0])
    assert (outcome.finish_reason, ticket.alone) == ("length", True)


async def test_the_events_of_a_pass_reach_the_loop_at_once(running: Running) -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    await running.engine.submit_all(choices(4), events)
    assert len(await ended(events, 4)) == 4 * 6
    assert running.handed_over == 5


async def test_under_load_chunks_are_put_together_but_the_first_and_the_last(running: Running) -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    await running.engine.submit_all(choices(8, max_tokens=40), events)
    found = await ended(events, 8)
    for choice in range(8):
        own = [event for event in found if isinstance(event, Chunk) and event.choice == choice]
        assert [len(chunk.token_ids) for chunk in own] == [1, 39]
        assert "".join(chunk.text for chunk in own) == "a" * 40


async def test_under_load_chunks_are_not_held_for_long(running: Running) -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    forward = running.target.forward

    def ticking(*arguments: object) -> object:
        running.now += 0.011
        return forward(*arguments)  # type: ignore[arg-type]

    running.target.forward = ticking  # type: ignore[method-assign, assignment]
    await running.engine.submit_all(choices(8, max_tokens=9), events)
    own = [event for event in await ended(events, 8) if isinstance(event, Chunk) and event.choice == 0]
    assert [len(chunk.token_ids) for chunk in own] == [1, 2, 2, 2, 2]
