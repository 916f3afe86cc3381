"""The type in which a datastore keeps tokens."""

from __future__ import annotations

import numpy as np


def token_dtype(separator: int) -> type[np.uint16] | type[np.uint32]:
    """The smallest type that holds every token and the separator after a document, which is no token."""
    return np.uint16 if separator <= np.iinfo(np.uint16).max else np.uint32
