"""Runs requests through an `EngineCore` under a given schedule and collects what came out."""

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Drafter
from services.generation.engine.engine import EngineThread
from services.generation.engine.events import Chunk, Event, Outcome, Sink
from services.generation.engine.request import EngineRequest
from services.generation.engine.sequence import TokenDecoder
from services.generation.engine.turns import Gains
from services.generation.target.target import Target
from tests.fakes.drafters import LetterDecoder

CHEAP_ROWS = PassCost.line(fixed=1.0, row=0.001)  # makes a drafter bold


@dataclass
class Collected:
    """Events of a run by request and choice."""

    preemptions: int = 0
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    chunks: dict[tuple[str, int], list[Chunk]] = field(default_factory=dict)

    def sink(self, event: Event) -> None:
        key = event.request_id, event.choice
        if isinstance(event, Chunk):
            assert key not in self.outcomes, "a chunk after the end"
            self.chunks.setdefault(key, []).append(event)
        else:
            assert key not in self.outcomes, "ended twice"
            self.outcomes[key] = event.outcome


def run(
    target: Target,
    requests: Sequence[EngineRequest],
    *,
    drafters: Mapping[str, Drafter] | None = None,
    settings: EngineSettings | None = None,
    arrivals: Sequence[int] | None = None,
    cancellations: Mapping[int, str] | None = None,
    cost: PassCost = CHEAP_ROWS,
    decoder: Callable[[tuple[int, ...]], TokenDecoder] = LetterDecoder,
    gains: Gains | None = None,
    clock: Callable[[], float] | None = None,
) -> Collected:
    """Step until all is done. `arrivals` are steps at which requests are added, `cancellations` request ids by step. By
    the usual `clock` a pass takes nearly nothing.
    """
    ticks = iter(range(10**9))
    settings, clock = settings or EngineSettings(), clock or (lambda: 1e-6 * next(ticks))
    core = EngineCore(target, drafters or {}, decoder, cost, settings, clock, gains)
    collected = Collected()
    due = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True))
    step = 0
    while due or not core.idle:
        while due and due[0][0] <= step:
            core.add(requests[due.pop(0)[1]], collected.sink)
        if cancellations and step in cancellations:
            core.cancel(cancellations[step])
        core.step()
        step += 1
        assert step < 100_000, "the engine does not come to an end"
    collected.preemptions = core.load().preemptions
    assert target.blocks.used == 0, "cache blocks leaked"
    return collected


def submit(engine: EngineThread, request: EngineRequest, sink: Sink) -> None:
    """Returns once the engine's thread has taken it; raises why it has not."""
    answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    engine.submit_all((request,), sink, answers.put)
    if (error := answers.get(timeout=30.0)) is not None:
        raise error
