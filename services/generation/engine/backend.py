"""The interface of engines that serve requests: the engine of this process, or another engine over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.generation.engine.engine import Ticket
from services.generation.engine.events import Counts, Load, Outcome, Sink
from services.generation.engine.request import EngineRequest


class Backend(Protocol):
    """An engine on one event loop. A request that is slow, or hangs, does not delay others."""

    @property
    def alive(self) -> bool:
        """False after the engine has stopped for good, so that this process may end."""
        ...

    @property
    def totals(self) -> Counts:
        """Counts of all sequences since the start."""
        ...

    def load(self) -> Load:
        """How busy it is."""
        ...

    async def submit_all(self, requests: Sequence[EngineRequest], sink: Sink) -> list[Ticket]:
        """Accept the sequences of a request, numbered by choice, or none of them. `sink` is called on the event loop
        with their events; each sequence ends with a Finished.

        Do not cancel this call. Raises InvalidRequest, EngineFull, EngineStopped.
        """
        ...

    async def complete(self, request: EngineRequest) -> tuple[Outcome, Ticket]:
        """Run one sequence to its end. A caller that is cancelled cancels it. Raises as `submit_all` does."""
        ...

    def cancel(self, request_id: str) -> None:
        """End all sequences of a request, if there are any; their last events are still sent."""
        ...

    async def stop(self) -> None:
        """Stop the engine. Running sequences end as cancelled, and their events are delivered."""
        ...
