"""Kernels on PoCL: the published vectors, and the refusal of devices and compilers that compute other bits."""

import numpy as np
import pytest

from services.generation.target.gpu.device import Device, DeviceUnavailable
from services.generation.target.gpu.kernels import Kernels
from services.generation.target.gpu.source import CONTRACTION
from services.generation.target.gpu.vectors import check_arithmetic, compute
from tests.fakes.opencl import kernels, opencl
from tests.numerics.arithmetic import assert_same_bits
from tests.numerics.vectors import values_of
from tests.vectors.make_device import FILE, SECTIONS, computed, contents

pytestmark = pytest.mark.usefixtures("pocl_device")

NOTHING = ("", "")
MAY_CONTRACT = (CONTRACTION, "")
OTHER_TIES = ("places[l] < places[o]", "places[l] > places[o]")
NO_BARRIER = ("SYNC;\n        LANES(l, to)", "LANES(l, to)")  # where the sums of a norm are folded


@pytest.fixture(scope="module")
def pocl() -> Kernels:
    return kernels()


def test_the_file_has_what_the_published_vectors_have() -> None:
    assert FILE.read_bytes() == contents()


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_kernels_give_the_published_bits(pocl: Kernels, section: str) -> None:
    """For one to a few rows, and for more than a tile."""
    for case in computed(section):
        for turns in (1, 9):
            for name, found in compute(pocl, section, case, turns).items():
                assert_same_bits(found, np.concatenate([values_of(case["expected"][name])] * turns))


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 7, 128])
def test_no_bit_depends_on_the_size_of_work_groups(lanes: int) -> None:
    check_arithmetic(Kernels(_compiled(), lanes), {"q8_0"})


def _compiled(*options: str, replaced: tuple[str, str] = NOTHING) -> Device:
    device = opencl(*options, replaced=replaced)
    device.compile()
    return device


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "replaced"),
    [
        ((), MAY_CONTRACT),
        (("-cl-mad-enable",), MAY_CONTRACT),
        (("-cl-denorms-are-zero",), NOTHING),
        (("-cl-fast-relaxed-math",), NOTHING),
        ((), OTHER_TIES),
        ((), NO_BARRIER),
    ],
    ids=["contracts", "contracts by option", "flushes", "reorders", "decides ties otherwise", "misses a barrier"],
)
def test_a_device_that_computes_other_bits_is_refused(options: tuple[str, ...], replaced: tuple[str, str]) -> None:
    device = _compiled(*options, replaced=replaced)
    if replaced is NO_BARRIER and "Portable" not in device.description:
        pytest.skip("work-items of another compiler may run in step; Oclgrind reports the race")
    with pytest.raises(DeviceUnavailable, match="computes other bits"):
        check_arithmetic(Kernels(device), {"q8_0"})
