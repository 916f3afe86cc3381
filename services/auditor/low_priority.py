"""The place of an auditor among processes: it computes mostly with what others leave over."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NICENESS = 10
"""A tenth of the weight of a server beside it on Linux; at 19 a busy machine would hardly let it compute at all."""


def yield_to_others() -> None:
    """Lower the priority of the calling thread, and of threads that it starts; the process answers and stops as before.

    Linux may weigh sessions against each other (sched_autogroup): there a priority counts within its own session only,
    and a session that this process leads has one too (sched(7)).
    """
    os.nice(NICENESS)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")
