"""How a server's last calls end: by one stop at a time running out."""

from __future__ import annotations

import asyncio
from typing import Any

from services.runtime.server import _drain


class _Held:
    """A server with a call that ends only when it is cut off."""

    def __init__(self) -> None:
        self.graces: list[float | None] = []
        self._cut_off = asyncio.Event()

    async def drain(self) -> None:
        pass

    async def stop(self, grace: float | None) -> None:
        self.graces.append(grace)
        if grace is None:
            self._cut_off.set()
        await asyncio.wait_for(self._cut_off.wait(), grace)


async def test_grpcs_own_grace_never_runs_out_beside_the_stop_that_cuts_the_last_calls_off() -> None:
    server: Any = _Held()
    await _drain(server, 0.01, asyncio.Queue(), lambda: None, None)
    longest, cut_off = server.graces
    assert cut_off is None
    assert longest > 3600
