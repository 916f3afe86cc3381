"""Compiles all that a server would compile at its first start, with a line for each step on stderr."""

from __future__ import annotations

import logging
from pathlib import Path

from services.cli.failures.exits import Failed
from services.generation.engine.numba_cache import compile_log
from services.generation.target.errors import TargetError
from services.generation.target.kernels.compilation import cache_folder
from services.generation.warm_up import compile_everything


def compile_here() -> Path:
    """The folder of the kernels. Raises Failed on a CPU that cannot run them."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        with compile_log():
            compile_everything()
    except TargetError as error:
        raise Failed(str(error)) from error
    return cache_folder()
