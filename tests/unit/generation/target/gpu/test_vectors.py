"""Kernels on PoCL: the published vectors, and the refusal of devices and compilers that compute other bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.target.gpu.device import Device, DeviceUnavailable
from services.generation.target.gpu.kernels import Kernels
from services.generation.target.gpu.source import CONTRACTION, STORAGES
from services.generation.target.gpu.vectors import check_arithmetic, compute
from services.generation.target.kernels.storages import packed_as
from tests.examples import examples
from tests.fakes.opencl import kernels, opencl
from tests.numerics import vectors
from tests.numerics.arithmetic import any_bits, assert_same_bits, bits
from tests.numerics.reference import ReferenceArithmetic
from tests.numerics.vectors import Case, array, values_of, weights
from tests.vectors.make_device import FILE, SECTIONS, computed, contents, subnormal
from tests.vectors.make_numerics import drawn, short, stored

pytestmark = pytest.mark.usefixtures("pocl_device")

NOTHING = ("", "")
MAY_CONTRACT = (CONTRACTION, "")
OTHER_TIES = ("places[l] < places[o]", "places[l] > places[o]")
NAN_AS_A_NUMBER = ("as_uint(x) & 0x7fffffffu) > 0x7f800000u", "0u) > 0u")
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


def random_case(section: str, random: np.random.Generator) -> Case:
    """A case of random sizes; inputs of norms and of linear layers have any bits."""
    rows, size, heads, groups = (int(random.integers(1, most)) for most in (7, 300, 4, 4))
    if section == "norm":
        return {"v": array(any_bits(random, rows, size)), "weight": array(drawn(random, size)), "epsilon": 1e-6}
    if section == "attention":
        queries, keys = drawn(random, rows, heads * groups, 2 * rows), short(drawn(random, size, groups, 2 * rows))
        seen = {"positions": random.integers(0, size, rows).tolist(), "windows": [0, size // 2 + 1]}
        form = {"cache_dtype": random.choice(["float32", "bfloat16", "int8"])}
        return {"queries": array(queries), "keys": array(keys), "values": array(keys[::-1]), **seen, **form}
    kinds = sorted(each for each in STORAGES if section == "linear" or packed_as(each).quantised)
    x, bias = any_bits(random, rows, 256 * groups), drawn(random, 20 * heads)
    matrix = stored(random, random.choice(kinds), 20 * heads, 256 * groups)
    return {"x": array(x), "weights": weights(matrix), "bias": array(bias)}


@pytest.mark.slow
@pytest.mark.parametrize("section", ["norm", "linear", "linear_int8", "attention"])
@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=examples(8))
def test_random_shapes_have_the_bits_of_the_reference(pocl: Kernels, section: str, seed: int) -> None:
    case = random_case(section, np.random.default_rng(seed))
    for name, expected in vectors.SECTIONS[section](ReferenceArithmetic(), case, 1).items():
        assert_same_bits(compute(pocl, section, case)[name], expected)


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
        ((), NAN_AS_A_NUMBER),
    ],
    ids=["contracts", "contracts by option", "flushes", "reorders", "other ties", "misses a barrier", "rounds NaN"],
)
def test_a_device_that_computes_other_bits_is_refused(options: tuple[str, ...], replaced: tuple[str, str]) -> None:
    device = _compiled(*options, replaced=replaced)
    if replaced is NO_BARRIER and "Portable" not in device.description:
        pytest.skip("work-items of another compiler may run in step; Oclgrind reports the race")
    with pytest.raises(DeviceUnavailable, match=r"first \[[\d, ]+\]: [0-9a-f]{8}, expected [0-9a-f]{8}"):
        check_arithmetic(Kernels(device), {"q8_0"})


@pytest.mark.slow
def test_every_section_sees_that_subnormal_results_are_flushed() -> None:
    flushing = Kernels(_compiled("-cl-denorms-are-zero"))
    for section in SECTIONS:
        case = max(computed(section), key=subnormal)
        found = compute(flushing, section, case)
        differ = {name: (bits(each) != bits(values_of(case["expected"][name]))).sum() for name, each in found.items()}
        assert sum(differ.values()) >= 6
