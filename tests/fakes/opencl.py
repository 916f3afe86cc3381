"""The first OpenCL device as a device of kolm: PoCL, where the tests' packages are installed."""

import pytest

from services.generation.target.gpu.device import Device
from services.generation.target.gpu.kernels import LANES, Kernels


def skip_without_opencl() -> None:
    """Skip the calling module if PyOpenCL is not installed, or finds no device."""
    pytest.importorskip("pyopencl", reason="pyopencl, of the extra dev, is not installed")
    from services.generation.target.gpu.opencl import devices

    if not devices():
        pytest.skip("no OpenCL device: PoCL, of the extra dev, is not installed", allow_module_level=True)


def opencl(*options: str, replaced: tuple[str, str] = ("", "")) -> Device:
    """The device, not compiled; with options of the compiler, and a text of the source replaced by another."""
    from services.generation.target.gpu.opencl import OpenClDevice, devices

    def altered(source: str) -> str:
        assert replaced[0] in source
        return source.replace(*replaced, 1)

    return OpenClDevice(devices()[0], options, altered)


def kernels(lanes: int = LANES) -> Kernels:
    """All kernels, compiled."""
    device = opencl()
    device.compile()
    return Kernels(device, lanes)
