"""Processes of the other ranks on rank 0's host."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from services.generation.ranks.work import Work
from services.generation.target.errors import RankLost

_END_SECONDS = 5.0  # for ranks that were told to stop


class Workers:
    """Started as this is made; `close` ends them."""

    def __init__(self, works: Sequence[Work]) -> None:
        command = [sys.executable, "-m", "services.generation.ranks.worker"]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd=Path(__file__).parents[3])
            for _ in works
        ]
        for process, work in zip(self._processes, works, strict=True):
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already, as `check` says
                process.stdin.write(work.line())
                process.stdin.flush()

    @property
    def ids(self) -> list[int]:
        """Process ids, of rank 1 first."""
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Raises RankLost where one has ended."""
        for rank, process in enumerate(self._processes, 1):
            if process.poll() is not None:
                how = f"with {process.returncode}" if process.returncode >= 0 else f"by signal {-process.returncode}"
                raise RankLost(f"rank {rank}, process {process.pid}, has ended {how}; its log says why")

    def close(self, *, told: bool) -> None:
        """End them; those that were told to stop have some seconds to do so."""
        end = time.monotonic() + (_END_SECONDS if told else 0.0)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            process.kill()
            process.wait()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
