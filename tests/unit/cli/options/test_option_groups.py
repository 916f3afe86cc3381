"""A parameter that is a dataclass stands for its fields, in its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.testing import CliRunner

from services.cli.options.option_groups import with_option_groups
from services.cli.options.options import HOME, Home


@dataclass(frozen=True, slots=True)
class Size:
    width: Annotated[int, typer.Option()]
    height: Annotated[int, typer.Option()] = 2

    def __post_init__(self) -> None:
        if self.width < self.height:
            raise typer.BadParameter("expected a width of at least the height")


def draw(name: Annotated[str, typer.Argument()], size: Size, home: Home = HOME) -> None:
    print(name, size.width, size.height, home.trusted)


def run(*words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(with_option_groups(draw))
    done = CliRunner().invoke(app, [*words])
    return done.exit_code, done.output


def test_a_command_gets_the_values_of_a_group_as_one_object() -> None:
    assert run("x", "--width", "3") == (0, "x 3 2 .kolm/trusted\n")
    assert run("x", "--width", "5", "--height", "4", "--data-dir", "d") == (0, "x 5 4 d/trusted\n")
    assert run("x", "--width", "5", "--trusted", "mine") == (0, "x 5 2 mine\n")


def test_a_field_without_a_default_has_to_be_given_and_a_group_refuses_values_before_the_command_runs() -> None:
    assert run("x")[0] == 2
    code, said = run("x", "--width", "1")
    assert code == 2
    assert "at least the height" in said


def test_keys_are_those_that_were_named_then_those_beside_a_database_then_those_of_the_data_directory(
    tmp_path: Path,
) -> None:
    assert Home(Path("d")).trusted_beside(tmp_path) == Path("d/trusted")
    (tmp_path / "trusted").mkdir()
    assert Home(Path("d")).trusted_beside(tmp_path) == tmp_path / "trusted"
    assert Home(Path("d"), Path("mine")).trusted_beside(tmp_path) == Path("mine")
    assert Home(Path("d")).key("publisher") == Path("d/keys/publisher.pem")
    assert Home(Path("d")).key("publisher", Path("p.pem")) == Path("p.pem")
