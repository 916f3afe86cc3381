"""Races between work-items, by Oclgrind, which simulates a device and reports them (Debian's packages `oclgrind` and
`liboclgrind-21.10`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("pocl_device")

CASES = """
import sys
from services.generation.target.gpu.kernels import Kernels
from services.generation.target.gpu.vectors import compute
from tests.fakes.opencl import opencl
from tests.numerics.vectors import values_of
from tests.vectors.make_device import SECTIONS, computed

device = opencl("-cl-opt-disable", replaced=(sys.argv[1], sys.argv[2]))  # Oclgrind knows no funnel shifts
device.compile()
assert "Oclgrind" in device.description
kernels = Kernels(device, 16)
print("best:", sum(each != (0, 0.0, 0.0) for each in kernels.best(kernels.lines(3, 1100), 3, 1100)), "of 3 differ")
for section in SECTIONS:
    for case in {case.get("cache_dtype"): case for case in computed(section)}.values():
        case = case | {"windows": case.get("windows", [])[:1]}
        for name, found in compute(kernels, section, case).items():
            print(section, name, int((found != values_of(case["expected"][name])).sum()), "of", found.size, "differ")
"""


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of OpenCL's drivers that has the simulator alone."""
    command = os.environ.get("OCLGRIND") or shutil.which("oclgrind")
    driver = Path(command or "/usr/bin/oclgrind").parents[1] / "lib" / "oclgrind" / "liboclgrind-rt-icd.so"
    if not driver.exists():
        pytest.skip("Oclgrind is not installed; OCLGRIND names its command, if it is not in the path")
    folder = tmp_path_factory.mktemp("drivers")
    (folder / "oclgrind.icd").write_text(f"{driver}\n")
    return folder


def simulated(drivers: Path, text: str = "", other: str = "") -> subprocess.CompletedProcess[str]:
    """The first case of each section, with a text of the kernels' source replaced by another."""
    environment = os.environ | {"OCL_ICD_VENDORS": str(drivers), "OCLGRIND_DATA_RACES": "1"}
    command = [sys.executable, "-c", CASES, text, other]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


@pytest.mark.long
def test_no_work_item_reads_what_another_writes_at_the_same_time(simulator: Path) -> None:
    run = simulated(simulator)
    lines = run.stdout.splitlines()
    assert "race" not in run.stderr
    assert len(lines) > 15
    assert [line for line in lines if " 0 of " not in line] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("SYNC;\n        LANES(l, to)", "LANES(l, to)"),  # where the sums of a norm are folded
        ("SYNC;\n            LANES(j, to) folded", "LANES(j, to) folded"),  # where the largest share is searched
    ],
    ids=["norm", "attention"],
)
def test_a_missing_barrier_is_reported(text: str, other: str, simulator: Path) -> None:
    assert "race" in simulated(simulator, text, other).stderr
