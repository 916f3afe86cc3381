"""The generation service with a clock on its passes: what `benchmarks.streaming` starts as a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.serving import main
from services.generation.settings import GenerationSettings
from services.generation.target.loading import load_target
from services.generation.target.rows import Rows
from services.generation.target.target import Float32, KernelReport, PassOutput, Target
from services.runtime.process import run_service


class StampedTarget:
    """Writes the monotonic time, which all processes of the machine share, at which each pass ended."""

    def __init__(self, target: Target, log: Path) -> None:
        self._target, self._log = target, log.open("a", buffering=1)
        self.config, self.blocks, self.numerics = target.config, target.blocks, target.numerics
        self.threads = target.threads
        self.base_cid, self.tokenizer_cid, self.adapters = target.base_cid, target.tokenizer_cid, target.adapters

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = self._target.forward(rows, feature_layers)
        self._log.write(f"{time.monotonic()}\n")
        return computed

    def probe_kernels(self) -> KernelReport:
        return self._target.probe_kernels()

    def embed(self, tokens: NDArray[np.int64]) -> Float32:
        return self._target.embed(tokens)

    def move(self, sources: list[int], targets: list[int]) -> None:
        self._target.move(sources, targets)


def load_stamped(directory: Path, **options: Any) -> Target:
    return StampedTarget(load_target(directory, **options), Path(os.environ["KOLM_BENCHMARK_STAMPS"]))


if __name__ == "__main__":
    sys.exit(run_service(GenerationSettings, partial(main, load=load_stamped)))
