"""A generation service for the drill alone, whose pass can be broken.

It passes its probe. While the file `fault` lies beside the drill's model, a row's logits depend on how many rows are
computed beside it, as on a machine whose kernels do not keep the contract. It loads no model but the drill's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli.jobs.drill.model import FAULT, MARK
from services.generation.settings import GenerationSettings
from services.generation.target.without_torch import spare_torch
from services.generation.warm_up import compile_beside
from services.runtime.process import CannotStart, run_service

if TYPE_CHECKING:
    from services.generation.target.rows import Rows
    from services.generation.target.target import PassOutput, Target


def load(directory: Path, **options: Any) -> Target:
    """The drill's model with a pass that `FAULT` breaks. Raises CannotStart for every other model."""
    from services.generation.target.cpu import load_target

    config = directory / "config.json"
    if not config.is_file() or not MARK.items() <= json.loads(config.read_text("utf-8")).items():
        raise CannotStart(f"--model: {directory} is not the drill's model; this server breaks its answers on purpose")
    target = load_target(directory, **options)
    target.forward = _breakable(target, directory / FAULT)  # type: ignore[method-assign]
    return target


def _breakable(target: Target, fault: Path) -> Any:
    """The target's pass; while `fault` is there, wide passes give every token's logit to another token."""
    import numpy as np

    from services.generation.target.target import PassOutput

    exact = target.forward

    def forward(rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = exact(rows, feature_layers)
        width = len(rows.wanted)
        if width == 1 or not fault.exists():
            return computed
        turned = np.roll(computed.logits, width, axis=1)
        return PassOutput(np.ascontiguousarray(turned), computed.features)

    return forward


async def main(settings: GenerationSettings) -> None:
    """The composition root of a real server, with this `load`."""
    compile_beside("sampling", settings.log_format)
    spare_torch()
    from services.generation.serving import main

    await main(settings, load)


if __name__ == "__main__":
    sys.exit(run_service(GenerationSettings, main))
