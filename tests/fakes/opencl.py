"""The first OpenCL device as a device of kolm: PoCL, where the tests' packages are installed."""

from services.generation.target.gpu.device import Device
from services.generation.target.gpu.kernels import LANES, Kernels


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
