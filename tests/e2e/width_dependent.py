"""A generation service whose target goes wrong on demand: `python -m tests.e2e.width_dependent [flags]`.

It passes its probe. From the moment that the file named by KOLM_TEST_FAULT exists, a row's logits depend on how many
rows are computed beside it, as on a machine whose kernels do not keep the contract.
"""

# ruff: noqa: E402 - what is served goes without torch, as in services/generation/__main__.py
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.generation.target.without_torch import hide_torch

hide_torch()

from services.generation.engine.cost import PassCost
from services.generation.engine.turns import Turns
from services.generation.serving import main
from services.generation.settings import GenerationSettings
from services.generation.target.cpu import load_target
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput, Target
from services.generation.warm_up import compile_beside
from services.runtime.process import run_service
from tests.fakes.engine_runs import CHEAP_ROWS
from tests.fakes.tampered_targets import WidthDependentTarget

# Drafts pay, however busy the machine is.
PassCost.measured = lambda *_: CHEAP_ROWS  # type: ignore[method-assign]
Turns.passed = lambda *_: None  # type: ignore[method-assign]


class SwitchedTarget(WidthDependentTarget):
    """Deviates while a file is there."""

    def __init__(self, target: Target, switch: Path) -> None:
        super().__init__(target)
        self._switch = switch

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        self.deviating = self._switch.exists()
        return super().forward(rows, feature_layers)


def load(directory: Path, **options: Any) -> Target:
    return SwitchedTarget(load_target(directory, **options), Path(os.environ["KOLM_TEST_FAULT"]))


async def serve(settings: GenerationSettings) -> None:
    compile_beside("greedy", settings.log_format)
    compile_beside("copies", settings.log_format)
    await main(settings, load)


if __name__ == "__main__":
    sys.exit(run_service(GenerationSettings, serve))
