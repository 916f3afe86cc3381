"""Types of arrays by dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]


def address(array: NDArray[Any]) -> int:
    """The address of an array's first element. `array.ctypes.data` is slower: it makes several objects."""
    return int(array.__array_interface__["data"][0])
