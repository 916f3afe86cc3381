"""The interface to a device, and its errors."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from services.generation.target.errors import TargetError

Buffer = Any
"""Memory of a device, by the handle of its library."""
Argument = Buffer | np.int32 | np.float32


class DeviceUnavailable(TargetError):
    """There is no such device, or it cannot compute kolm's bits, or its memory is too small for the model."""


class DeviceLost(TargetError):
    """A device failed while it computed; nothing of the pass was returned."""


class Device(Protocol):
    """A device with the compiled kernels. Commands are executed in order. Used by one thread.

    Every method raises DeviceLost if the device fails, and `buffer` DeviceUnavailable if its memory is full.
    """

    description: str  # name, driver and version: results of measurements belong to it
    memory: int  # bytes

    def compile(self) -> None:
        """Compile the kernels. Raises DeviceUnavailable."""
        ...

    def buffer(self, size: int) -> Buffer:
        """Memory of `size` bytes, not initialised."""
        ...

    def write(self, buffer: Buffer, array: NDArray[Any], offset: int = 0) -> None:
        """Copy an array to byte `offset`; it may be changed after the call."""
        ...

    def read(self, buffer: Buffer, array: NDArray[Any], offset: int = 0) -> None:
        """Wait for all commands and fill a contiguous array from byte `offset` on."""
        ...

    def run(self, kernel: str, groups: tuple[int, int], lanes: int, *arguments: Argument) -> None:
        """Run a kernel by work-groups of `lanes` work-items; `groups` are not 0, which CUDA and OpenCL 1.2 refuse."""
        ...


def no_such(kind: str, index: int, found: list[str]) -> DeviceUnavailable:
    listed = ", ".join(f"{kind}:{number} {name}" for number, name in enumerate(found)) or "none"
    return DeviceUnavailable(f"--device {kind}:{index}: no such device; found: {listed}; name one of these, or cpu")
