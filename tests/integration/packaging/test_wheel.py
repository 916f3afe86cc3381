"""The wheel, in an environment that has nothing but it and what its extra `verify` names."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

from tests.unit.ledger.vectors import VECTORS

ROOT = Path(__file__).parents[3]


def test_the_wheel_of_a_checkout_verifies_with_its_extra_alone(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("kolm_serve-*.whl")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(packages)
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        named = [line.partition(": ")[2] for line in archive.read(metadata).decode().splitlines()]
    wanted = [Requirement(line) for line in named if line.endswith("extra == 'verify'")]
    assert wanted
    for place in _places(wanted):
        if not (packages / place.name).exists():
            (packages / place.name).symlink_to(place)

    def kolm(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = "import sys; from services.cli.main import app; app(sys.argv[1:], prog_name='kolm')"
        python = [str(environment / "bin" / "python"), "-I", "-c", command, *arguments]
        return subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=False)

    verified = kolm(
        "verify",
        str(VECTORS / "bundles/good.tar.gz"),
        "--trusted",
        str(VECTORS / "log/keys"),
        "--max-unreplayable",
        "1",
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    bundle, keys = str(VECTORS / "bundles/good.tar.gz"), str(VECTORS / "log/keys")
    face = f"import kolm; print(kolm.verify({bundle!r}, {keys!r}, max_unreplayable=1).ok); kolm.Runtime"
    imported = subprocess.run(
        [str(environment / "bin" / "python"), "-I", "-c", face],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert imported.stdout == "True\n", imported.stderr
    assert "ImportError: kolm.Runtime: needs google" in imported.stderr
    assert "pip install 'kolm-serve[cli]'" in imported.stderr
    assert kolm("--version").stdout == "kolm 0.1.0\n"
    missing = kolm("receipts", "list")
    assert (missing.returncode, "pip install 'kolm-serve[cli]'" in missing.stderr) == (2, True), missing.stderr


def _places(wanted: list[Requirement]) -> Iterator[Path]:
    """Files and folders of installed distributions, and of what these require in turn."""
    left, known = [requirement.name for requirement in wanted], set[str]()
    while left:
        name = left.pop()
        if name in known:
            continue
        known.add(name)
        found = distribution(name)
        for place in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            yield Path(str(found.locate_file(place)))
        for required in map(Requirement, found.requires or ()):
            if required.marker is None or required.marker.evaluate({"extra": ""}):
                left.append(required.name)
