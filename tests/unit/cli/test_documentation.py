"""docs/command-line.md knows every command, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from services.cli.frame import exits
from services.cli.main import app

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")


def commands(group: Any, path: str = "kolm") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def test_every_command_is_documented_and_every_documented_one_exists() -> None:
    documented = re.findall(r"^\| `(kolm [^`]+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(documented) == sorted(commands(typer.main.get_command(app)))


def test_every_exit_code_is_documented() -> None:
    section = PAGE.split("## Exit codes")[1].split("## ")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", section, flags=re.MULTILINE)}
    named = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert documented == named


def test_every_environment_variable_is_documented() -> None:
    options = (Path(__file__).resolve().parents[3] / "services/cli/frame/options.py").read_text(encoding="utf-8")
    assert all(name in PAGE for name in re.findall(r'envvar="(\w+)"', options))
