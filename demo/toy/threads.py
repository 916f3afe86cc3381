"""Sharing a busy machine: fewer threads while others want the cores."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from services.training.head.optimiser import Clock

_STEPS_BETWEEN_TRIALS = 25
_BUSY_BELOW = 0.8
"""Share of their time that the threads must get; below it, waiting for one another costs more than they bring."""


@dataclass(slots=True)
class PoliteThreads:
    """One thread where the last step's threads did not get their cores; all of them are tried again now and then.

    Sums may round differently from one number of threads to the next, so a polite run is not reproducible to the bit.
    """

    most: int = field(default_factory=torch.get_num_threads)
    wall: Clock = time.monotonic
    cpu: Clock = time.process_time
    """Seconds that all threads of this process have computed."""
    _until_trial: int = 0
    _began: tuple[float, float] = (0.0, 0.0)

    def begin_step(self) -> None:
        self._began = self.wall(), self.cpu()

    def end_step(self) -> None:
        """Set the number of threads of the next step."""
        wall, cpu = self.wall() - self._began[0], self.cpu() - self._began[1]
        threads = torch.get_num_threads()
        self._until_trial -= 1
        if threads > 1 and cpu < _BUSY_BELOW * threads * wall:
            torch.set_num_threads(1)
            self._until_trial = _STEPS_BETWEEN_TRIALS
        elif threads == 1 and self._until_trial <= 0:
            torch.set_num_threads(self.most)
