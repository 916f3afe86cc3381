"""Devices by OpenCL 1.2: AMD's, Intel's and NVIDIA's GPUs, and PoCL, a compiler for CPUs, in tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray
from pyopencl.characterize import has_src_build_cache

from services.generation.target.gpu import device
from services.generation.target.gpu.device import Argument, Buffer, DeviceLost, DeviceUnavailable
from services.generation.target.gpu.source import OPENCL, kept, source

_OPTIONS = ("-cl-std=CL1.2",)


class OpenClDevice:
    """`Device` by OpenCL. For controls: further `options` of the compiler, and a change of the source, `altered`."""

    def __init__(
        self, found: cl.Device, options: Sequence[str] = (), altered: Callable[[str], str] = lambda text: text
    ) -> None:
        self._device, self._context = found, cl.Context([found])
        self._queue = cl.CommandQueue(self._context)
        self._options, self._altered = (*_OPTIONS, *options), altered
        self._kernels: dict[str, cl.Kernel] = {}
        self.description = f"opencl {found.platform.name} {found.name} {found.driver_version}"
        self.memory = int(found.global_mem_size)

    def compile(self) -> None:
        """See `Device`. Binaries are kept between starts, unless the driver keeps them itself."""
        text = self._altered(source(OPENCL))
        try:
            program = cl.Program(self._context, text)
            if not has_src_build_cache(self._device):
                circumstances = self.description, *self._options, text
                binary = kept(circumstances, lambda: self._binary(program))
                program = cl.Program(self._context, [self._device], [binary])
            self._kernels = {kernel.function_name: kernel for kernel in self._built(program).all_kernels()}
        except cl.Error as error:
            raise DeviceUnavailable(f"{self.description} cannot compile kolm's kernels: {error!s:.2000}") from error

    def _built(self, program: cl.Program) -> cl.Program:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)  # of any remark that a compiler makes
            program.build(list(self._options), cache_dir=False)  # type: ignore[arg-type]  # its cache needs a home
        return program

    def _binary(self, program: cl.Program) -> bytes:
        (binary,) = cast("list[bytes]", self._built(program).get_info(cl.program_info.BINARIES))
        return binary

    def buffer(self, size: int) -> Buffer:
        try:
            buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(size, 4))
            cl.enqueue_copy(self._queue, buffer, np.zeros(1, np.int32))  # some drivers allocate at the first use
            return buffer
        except cl.Error as error:
            raise DeviceUnavailable(f"{self.description} has no room for {size} bytes more: {error}") from error

    def write(self, buffer: Buffer, array: NDArray[Any], offset: int = 0) -> None:
        if array.nbytes:
            self._do(cl.enqueue_copy, self._queue, buffer, np.ascontiguousarray(array), dst_offset=offset)

    def read(self, buffer: Buffer, array: NDArray[Any], offset: int = 0) -> None:
        if array.nbytes:
            self._do(cl.enqueue_copy, self._queue, array, buffer, src_offset=offset)

    def run(self, kernel: str, groups: tuple[int, int], lanes: int, *arguments: Argument) -> None:
        found = self._kernels[kernel]
        self._do(found.set_args, *arguments)
        self._do(cl.enqueue_nd_range_kernel, self._queue, found, (groups[0] * lanes, groups[1]), (lanes, 1))

    def _do(self, call: Callable[..., object], *arguments: object, **named: object) -> None:
        try:
            call(*arguments, **named)
        except cl.Error as error:
            raise DeviceLost(f"{self.description} failed: {error}; look at its driver's log and start again") from error


def devices() -> list[cl.Device]:
    """All devices of all platforms, in the order in which `--device opencl:N` counts them."""
    try:
        return [found for platform in cl.get_platforms() for found in platform.get_devices()]
    except cl.Error:  # no platform at all
        return []


def open_device(index: int) -> OpenClDevice:
    """Device `index`. Raises DeviceUnavailable."""
    found = devices()
    if index >= len(found):
        raise device.no_such("opencl", index, [each.name for each in found])
    return OpenClDevice(found[index])
