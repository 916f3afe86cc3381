"""`python -m services.generation [--model DIR] [--ledger HOST:PORT]`: settings first, the engine once they hold."""

from __future__ import annotations

import sys

from services.generation.compiled.first_start import compile_beside
from services.generation.settings import GenerationSettings
from services.generation.target.without_torch import spare_torch
from services.runtime.process import run_service


async def main(settings: GenerationSettings) -> None:
    """See `services.generation.serving`."""
    compile_beside("sampling", settings.log_format)
    if settings.head_references or settings.draft_model:
        compile_beside("trees", settings.log_format)
    if settings.device == "cpu" and settings.embedder is None:  # an embedder is a model of torch's
        spare_torch()
    from services.generation.serving import main

    await main(settings)


if __name__ == "__main__":
    sys.exit(run_service(GenerationSettings, main))
