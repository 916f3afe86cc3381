"""What answers requests: the engine of this process, or another one behind HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.generation.engine.engine import Load, Ticket
from services.generation.engine.events import Counts, Outcome, Sink
from services.generation.engine.request import EngineRequest


class Backend(Protocol):
    """On one event loop. A request that is slow, or hangs, holds no other up."""

    @property
    def alive(self) -> bool:
        """False once nothing will ever be served again, so that this process may end."""
        ...

    @property
    def totals(self) -> Counts:
        """Counts of all sequences since the start."""
        ...

    def load(self) -> Load:
        """How busy it is."""
        ...

    async def submit_all(self, requests: Sequence[EngineRequest], sink: Sink) -> list[Ticket]:
        """Take the sequences of a request, numbered as its choices are, or none. `sink` is called on the event loop and
        gets their events; each sequence ends with a Finished.

        Do not cancel this call. Raises InvalidRequest, EngineFull, EngineStopped.
        """
        ...

    async def complete(self, request: EngineRequest) -> tuple[Outcome, Ticket]:
        """Run one sequence to its end. A caller that is cancelled cancels it. Raises as `submit_all` does."""
        ...

    def cancel(self, request_id: str) -> None:
        """End all sequences of a request, if there are any; their last events still come."""
        ...

    async def stop(self) -> None:
        """Sequences still running end as cancelled, their events delivered."""
        ...
