"""Looking at a stack again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from services.cli.jobs.running.stack import Stack, read_stack
from services.cli.jobs.stop_signals import stop_signals


def looks(addresses: Mapping[str, str], every: float, count: int | None) -> Iterator[tuple[Stack, Stack]]:
    """Each look with the one before it, `every` seconds apart; ends after `count`, or with SIGINT or SIGTERM."""
    stop = threading.Event()
    with stop_signals(lambda _: stop.set()):
        before = read_stack(addresses)
        while (count is None or count > 0) and not stop.wait(every):
            after = read_stack(addresses)
            yield before, after
            before, count = after, None if count is None else count - 1
