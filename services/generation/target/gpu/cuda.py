"""NVIDIA's GPUs: the kernels compiled by NVRTC, run by the driver's interface. It has never run on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
from cuda.bindings import driver, nvrtc
from numpy.typing import NDArray

from services.generation.target.gpu import device
from services.generation.target.gpu.device import Argument, Buffer, DeviceLost, DeviceUnavailable
from services.generation.target.gpu.source import CUDA, kept, source

OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""Correctly rounded operations, no FMA contraction, no flush to zero."""

_OTHER_VERSION = (
    driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    driver.CUresult.CUDA_ERROR_INVALID_PTX,
    driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU,
)


def compile_ptx(architecture: str, options: Iterable[str] = OPTIONS) -> str:
    """The kernels as PTX for a virtual architecture such as compute_80. Needs no GPU.

    Raises DeviceUnavailable if NVRTC refuses the source, DeviceLost if another of its calls fails.
    """
    written = source(CUDA).encode()
    (program,) = _check_call(nvrtc.nvrtcCreateProgram(written, b"kernels.cu", 0, [], []), "nvrtcCreateProgram")
    words = [word.encode() for word in (f"--gpu-architecture={architecture}", *options)]
    (code, *_) = nvrtc.nvrtcCompileProgram(program, len(words), words)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _check_call(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")[0]
        _check_call(nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
        raise DeviceUnavailable(f"NVRTC cannot compile kolm's kernels: {log.decode(errors='replace'):.2000}")
    ptx = b" " * _check_call(nvrtc.nvrtcGetPTXSize(program), "nvrtcGetPTXSize")[0]
    _check_call(nvrtc.nvrtcGetPTX(program, ptx), "nvrtcGetPTX")
    text: str = ptx.rstrip(b"\0").decode()
    return text


class CudaDevice:
    """`Device` by CUDA, in the device's primary context and the default stream."""

    def __init__(self, handle: Any, context: Any) -> None:
        self._context = context
        self._functions: dict[str, Any] = {}
        attribute = driver.CUdevice_attribute
        self._architecture = "compute_{}{}".format(
            *(
                _check_call(driver.cuDeviceGetAttribute(each, handle), "cuDeviceGetAttribute")[0]
                for each in (
                    attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                    attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                )
            )
        )
        version = _check_call(driver.cuDriverGetVersion(), "cuDriverGetVersion")[0]
        self.description = f"cuda {_name(handle)} {self._architecture} driver {version}"
        self.memory = int(_check_call(driver.cuDeviceTotalMem(handle), "cuDeviceTotalMem")[0])

    def compile(self) -> None:
        self._enter()
        major, minor = _check_call(nvrtc.nvrtcVersion(), "nvrtcVersion")
        circumstances = f"NVRTC {major}.{minor}", self.description, *OPTIONS, source(CUDA)
        ptx = kept(circumstances, lambda: compile_ptx(self._architecture).encode() + b"\0")
        code, self._module = driver.cuModuleLoadData(ptx)
        if code in _OTHER_VERSION:
            raise DeviceUnavailable(
                f"{self.description} cannot load code of NVRTC {major}.{minor} ({code.name}): install a driver for "
                f"CUDA {major}.{minor} or newer, or use --device cpu"
            )
        _check_call((code,), "cuModuleLoadData")

    def buffer(self, size: int) -> Buffer:
        self._enter()
        code, memory = driver.cuMemAlloc(max(size, 4))
        if code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise DeviceUnavailable(f"{self.description} has no room for {size} bytes more")
        _check_call((code,), "cuMemAlloc")
        return _Memory(memory)

    def write(self, buffer: Buffer, array: NDArray[Any], offset: int = 0) -> None:
        self._enter()
        whole = np.ascontiguousarray(array)
        if whole.nbytes:
            _check_call(driver.cuMemcpyHtoD(buffer.address + offset, whole.ctypes.data, whole.nbytes), "cuMemcpyHtoD")

    def read(self, buffer: Buffer, array: NDArray[Any], offset: int = 0) -> None:
        self._enter()
        if array.nbytes:
            _check_call(driver.cuMemcpyDtoH(array.ctypes.data, buffer.address + offset, array.nbytes), "cuMemcpyDtoH")

    def run(self, kernel: str, groups: tuple[int, int], lanes: int, *arguments: Argument) -> None:
        self._enter()
        if kernel not in self._functions:
            name = kernel.encode()
            (self._functions[kernel],) = _check_call(
                driver.cuModuleGetFunction(self._module, name), "cuModuleGetFunction"
            )
        values, kinds = zip(*map(_launch_argument, arguments), strict=True)
        launched = driver.cuLaunchKernel(
            self._functions[kernel], groups[0], groups[1], 1, lanes, 1, 1, 0, 0, (values, kinds), 0
        )
        _check_call(launched, "cuLaunchKernel")

    def _enter(self) -> None:
        """Make the context current: the engine's thread is not the thread that loaded the model."""
        _check_call(driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")


class _Memory:
    """Memory of the device, freed with this object."""

    def __init__(self, handle: Any) -> None:
        self._handle, self.address = handle, int(handle)

    def __del__(self) -> None:
        driver.cuMemFree(self._handle)


def _launch_argument(argument: Argument) -> tuple[Any, Any]:
    """A kernel's argument and its type in C; the type of a null pointer is that of an address."""
    if isinstance(argument, np.int32):
        return int(argument), ctypes.c_int
    if isinstance(argument, np.float32):
        return float(argument), ctypes.c_float
    return argument.address, ctypes.c_void_p


def _name(handle: Any) -> str:
    found: bytes = _check_call(driver.cuDeviceGetName(256, handle), "cuDeviceGetName")[0]
    return found.rstrip(b"\0").decode()


def _check_call(outcome: tuple[Any, ...], call: str) -> tuple[Any, ...]:
    """The values of a call. Raises DeviceLost if it failed."""
    if outcome[0].value:
        raise DeviceLost(f"{call} failed: {outcome[0].name}; see the driver's log (dmesg) and restart the server")
    return outcome[1:]


def open_device(index: int) -> CudaDevice:
    """Device `index`. Raises DeviceUnavailable; DeviceLost if it fails while it is opened."""
    try:
        _check_call(driver.cuInit(0), "cuInit")
        handles = [
            _check_call(driver.cuDeviceGet(number), "cuDeviceGet")[0]
            for number in range(_check_call(driver.cuDeviceGetCount(), "cuDeviceGetCount")[0])
        ]
        names = [_name(handle) for handle in handles]
    except (DeviceLost, RuntimeError) as error:  # RuntimeError: cuda.bindings finds no driver
        raise DeviceUnavailable(
            f"--device cuda: the NVIDIA driver is not available ({error}); install it, or use --device cpu"
        ) from error
    if index >= len(handles):
        raise device.no_such("cuda", index, names)
    (context,) = _check_call(driver.cuDevicePrimaryCtxRetain(handles[index]), "cuDevicePrimaryCtxRetain")
    return CudaDevice(handles[index], context)
