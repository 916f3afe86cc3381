"""Compiles all that a server would compile at its first start, with a line for each step on stderr."""

from __future__ import annotations

import logging
from pathlib import Path

from services.cli.failures.exits import Failed
from services.generation.compiled.compiled_code import compile_everything
from services.generation.engine.compile_log import compile_log
from services.generation.target.canonical.kernels.cache_folder import cache_folder
from services.generation.target.errors import TargetError


def compile_here() -> Path:
    """The folder of the kernels. Raises Failed on a CPU that cannot run them."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        with compile_log():
            compile_everything()
    except TargetError as error:
        raise Failed(str(error)) from error
    return cache_folder()
