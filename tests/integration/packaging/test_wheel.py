"""The wheels; kolm-verify in an environment with nothing but it and its requirements."""

import json
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.distributions import ROOT, closure, places
from tests.examples import VECTORS

SMALL = ROOT / "packages/kolm-verify"
GOOD = ("verify", str(VECTORS / "bundles/good.tar.gz"), "--trusted", str(VECTORS / "log/keys"), "--max-unreplayable=1")

Python = Callable[..., subprocess.CompletedProcess[str]]


def built(project: Path, folder: Path) -> Path:
    """The wheel that `make wheels` makes of a project."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=project, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Runs the Python of an environment with kolm-verify."""
    folder = tmp_path_factory.mktemp("wheel")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    with ZipFile(built(SMALL, folder)) as archive:
        archive.extractall(packages)
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        named = [line.partition(": ") for line in archive.read(metadata).decode().splitlines()]
    found = closure(Requirement(value) for key, _, value in named if key == "Requires-Dist")
    for place in places(filter(None, found.values())):
        (packages / place.name).symlink_to(place)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / "python"), "-I", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    return run


def test_the_small_wheel_verifies_and_says_what_it_is_not(python: Python) -> None:
    def kolm(*arguments: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "services.cli", *arguments)

    verified = kolm(*GOOD)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert kolm("--version").stdout == "kolm 0.1.0\n"
    keys = ("--trusted", str(VECTORS / "log/keys"))
    assert kolm("trust", "list", *keys).returncode == 0
    assert kolm("monitor", "--tiles", "http://127.0.0.1:9", "--once", *keys).returncode == 5
    for words, extra in {
        ("receipts", "list"): "cli",
        ("generate", "x"): "cli",
        ("status",): "cli",
        ("serve", "ledger"): "all",
        ("up",): "all",
        ("ledger", "verify", *keys): "cli",
    }.items():
        missing = kolm(*words)
        assert (missing.returncode, f".whl[{extra}]" in missing.stderr) == (2, True), missing.stderr
        assert "Traceback" not in missing.stderr


WALK = """
import json, sys
import typer
from typer.testing import CliRunner
from services.cli.main import app

def leaves(command, words):
    below = getattr(command, "commands", None)
    yield words, below is not None
    for name in below or ():
        yield from leaves(below[name], (*words, name))

def run(*words):
    done = CliRunner().invoke(app, words, catch_exceptions=True)
    broken = done.exception is not None and not isinstance(done.exception, SystemExit)
    return done.exit_code, repr(done.exception) if broken else None, done.stdout, done.stderr

found = []
for words, is_group in leaves(typer.main.get_command(app), ()):
    found.append({"words": words, "group": is_group, "help": run(*words, "--help"), "bare": run(*words)})
json.dump(found, sys.stdout)
"""


def test_every_command_of_the_small_wheel_has_its_help_and_says_what_is_left_out(python: Python) -> None:
    walked = python("-c", WALK)
    assert walked.returncode == 0, walked.stderr
    found = {tuple(each["words"]): each for each in json.loads(walked.stdout)}
    assert {("verify",), ("monitor",), ("trust", "add"), ("generate",), ("heads", "train")} <= set(found)
    services = {
        ("serve", name) for name in ("generation", "ledger", "auditor", "registry", "witness", "http", "explorer")
    }
    for words, each in found.items():
        code, problem, shown, errors = each["help"]
        if words in services:  # whose flags only the service knows
            assert (code, problem, "leaves out" in errors) == (2, None, True), (words, problem, errors)
        else:
            assert (code, problem, errors) == (0, None, ""), (words, problem, errors)
            assert all(word in shown.splitlines()[0] for word in words), shown
        code, problem, shown, errors = each["bare"]
        assert problem is None, (words, problem)
        assert code in (0, 2), (words, code, errors)


def test_kolm_alone_is_its_help(python: Python) -> None:
    asked, alone = python("-m", "services.cli", "--help"), python("-m", "services.cli")
    assert (asked.returncode, asked.stderr, "verify" in asked.stdout) == (0, "", True)
    assert asked.stdout in (alone.stdout, alone.stderr)
    rows = re.split(r"\n  (?=\w)", asked.stdout.partition("Commands:")[2].partition("\nOptions:")[0])
    runs = {row.split()[0] for row in rows if row.strip() and "needs kolm-serve" not in " ".join(row.split())}
    assert runs == {"verify", "monitor", "trust"}


def test_the_small_wheel_is_the_face_of_what_verifies(python: Python) -> None:
    bundle, keys = str(VECTORS / "bundles/good.tar.gz"), str(VECTORS / "log/keys")
    imported = python(
        "-c", f"import kolm; print(kolm.verify({bundle!r}, {keys!r}, max_unreplayable=1).ok); kolm.Runtime"
    )
    assert imported.stdout == "True\n", imported.stderr
    assert "ImportError: kolm.Runtime: needs the package services of kolm-serve" in imported.stderr


def test_both_wheels_have_one_version_and_the_small_one_nothing_else(tmp_path: Path) -> None:
    wheels = [built(project, tmp_path / project.name) for project in (ROOT, SMALL)]
    large, small = (set(ZipFile(wheel).namelist()) for wheel in wheels)
    assert [wheel.name for wheel in wheels] == [f"kolm_{name}-0.1.0-py3-none-any.whl" for name in ("serve", "verify")]
    assert {name for name in small - large if ".dist-info/" not in name} == set()
    assert sum(wheel.stat().st_size for wheel in wheels[1:]) < wheels[0].stat().st_size / 3
    own, all_ = (tomllib.loads((project / "pyproject.toml").read_text())["project"] for project in (SMALL, ROOT))
    extras = all_["optional-dependencies"]
    assert set(own["dependencies"]) <= {*extras["ledger"], *extras["cli"]}


@pytest.mark.parametrize("project", [ROOT, SMALL], ids=["kolm-serve", "kolm-verify"])
def test_each_wheel_has_the_licence_and_names_it(project: Path, tmp_path: Path) -> None:
    with ZipFile(built(project, tmp_path)) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        (licence,) = (name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        assert "License-Expression: Apache-2.0" in archive.read(metadata).decode().splitlines()
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
