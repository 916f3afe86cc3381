"""The generation service with a clock on its passes: what `benchmarks.streaming` starts as a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from services.generation.serving import main
from services.generation.settings import GenerationSettings
from services.generation.target.loading import load_target
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput, Target
from services.runtime.process import run_service
from tests.fakes.tampered_targets import WrappedTarget


class StampedTarget(WrappedTarget):
    """Writes the monotonic time, which all processes of the machine share, at which each pass ended."""

    def __init__(self, target: Target, log: Path) -> None:
        super().__init__(target)
        self._log = log.open("a", buffering=1)

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = super().forward(rows, feature_layers)
        self._log.write(f"{time.monotonic()}\n")
        return computed


def load_stamped(directory: Path, **options: Any) -> Target:
    return StampedTarget(load_target(directory, **options), Path(os.environ["KOLM_BENCHMARK_STAMPS"]))


if __name__ == "__main__":
    sys.exit(run_service(GenerationSettings, partial(main, load=load_stamped)))
