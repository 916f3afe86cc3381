"""The files and targets that the Makefile, the commit hooks and the editors' settings name are there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def test_make_help_lists_every_phony_target() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, flags=re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\S+) +\S", shown, flags=re.MULTILINE)) == set(phony.split())


def test_every_commit_hook_is_a_line_of_make_lint() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    programs = [hook["entry"].replace(".venv/bin/", "$(BIN)/").removesuffix(" --fix") for hook in repository["hooks"]]
    assert [program for program in programs if f"@{program}" not in MAKEFILE] == []


def test_a_development_container_has_the_python_of_the_image() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    (version,) = set(
        re.findall(r"^ARG PYTHON_IMAGE=python:([\d.]+)-", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    )
    assert f"python:{version}-" in container["image"]
    assert container["postCreateCommand"] == "make venv"


def test_random_examples_of_unit_tests_are_fewer_where_make_test_fast_asks_for_fewer() -> None:
    """A number of their own would go against the profile: `tests.examples` makes it a share of the profile's."""
    files = (ROOT / "tests" / "unit").rglob("*.py")
    assert [str(file) for file in files if re.search(r"max_examples=\d", file.read_text("utf-8"))] == []


def test_nothing_tells_people_to_install_a_distribution_that_is_not_published() -> None:
    """Its name on a package index may be a stranger's by then; a file that `make wheels` has made is kolm's."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [
        ROOT / name for name in listed.split("\0") if name.endswith((".py", ".md", ".toml", ".yaml", ".html", ".js"))
    ]
    told = re.compile(r"pip install (-\S+ )*['\"]?kolm(?!_)")
    kept = {ROOT / "CHANGELOG.md", ROOT / "docs" / "first-hour.md"}  # which tell what was
    found = [str(file) for file in files if file not in kept and file.exists() and told.search(file.read_text("utf-8"))]
    assert found == []
