"""A file's bytes, mapped into memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.generation.target.errors import ModelNotFound, WeightsInvalid


def map_file(path: Path) -> NDArray[np.uint8]:
    """Read-only; given back when nothing refers to it any more.

    Raises:
        ModelNotFound: there is no such file.
        WeightsInvalid: it is empty, a directory, or not to be read.
    """
    try:
        with path.open("rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except FileNotFoundError as error:
        raise ModelNotFound(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # mmap raises ValueError for an empty file
        raise WeightsInvalid(f"{path}: cannot be read: {error}; download or copy it again") from error
