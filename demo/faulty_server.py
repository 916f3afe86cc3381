"""A generation service whose arithmetic goes wrong on demand: `python -m demo.faulty_server [flags]`, for `demo.drill`.

While its state folder has a file `fault`, the logits of a row depend on the number of rows in its pass, as on a machine
whose kernels break the contract. Its probe passes, because the file is written later.
"""

# ruff: noqa: E402 - as services/generation/__main__.py serves, without torch
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from services.generation.target.without_torch import hide_torch

hide_torch()

import numpy as np

from demo import FAULT
from services.generation.engine.cost import PassCost
from services.generation.engine.turns import Turns
from services.generation.serving import main
from services.generation.settings import GenerationSettings
from services.generation.target.cpu import load_target
from services.generation.target.rows import Rows
from services.generation.target.target import LoadTarget, PassOutput, Target
from services.generation.warm_up import compile_beside
from services.runtime.process import run_service


class FaultyTarget:
    """The wrapped target, wrong while the file is there."""

    def __init__(self, target: Target, fault: Path) -> None:
        self._target, self._fault = target, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = self._target.forward(rows, feature_layers)
        if len(rows.wanted) < 2 or not self._fault.exists():
            return computed
        return PassOutput(np.ascontiguousarray(np.roll(computed.logits, len(rows.wanted), axis=1)), computed.features)


async def serve(settings: GenerationSettings) -> None:
    """Drafts are verified whatever they cost here, so that passes have several rows on a busy machine too."""
    PassCost.measured = lambda *_: PassCost.line(fixed=1.0, row=1e-6)  # type: ignore[method-assign]
    Turns.passed = lambda *_: None  # type: ignore[method-assign]
    compile_beside("greedy", settings.log_format)
    compile_beside("copies", settings.log_format)

    def load(directory: Path, **options: Any) -> Target:
        return cast(Target, FaultyTarget(load_target(directory, **options), settings.state_dir / FAULT))

    await main(settings, cast(LoadTarget, load))


if __name__ == "__main__":
    sys.exit(run_service(GenerationSettings, serve))
