"""The device of these tests: PoCL, where the tests' packages are installed."""

import pytest


@pytest.fixture(scope="session")
def pocl_device() -> None:
    """Skips if PyOpenCL is not installed, or finds no device. PoCL starts threads: not before a worker is forked."""
    pytest.importorskip("pyopencl", reason="pyopencl, of the extra dev, is not installed")
    from services.generation.target.gpu.opencl import devices

    if not devices():
        pytest.skip("no OpenCL device: PoCL, of the extra dev, is not installed")
