"""Parameters of commands: dataclasses for their fields, and the values that typer makes of them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from services.cli.frame.command_tree import _coerced_quickly, with_option_groups
from services.cli.frame.exits import UsageError
from services.cli.frame.options import PATHS, Paths


@dataclass(frozen=True, slots=True)
class Size:
    width: Annotated[int, typer.Option()]
    height: Annotated[int, typer.Option()] = 2

    def __post_init__(self) -> None:
        if self.width < self.height:
            raise typer.BadParameter("expected a width of at least the height")


def draw(name: Annotated[str, typer.Argument()], size: Size, home: Paths = PATHS) -> None:
    print(name, size.width, size.height, home.trusted)


def run(*words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(with_option_groups(draw))
    done = CliRunner().invoke(app, [*words])
    return done.exit_code, done.output


def test_a_command_gets_the_values_of_a_group_as_one_object() -> None:
    assert run("x", "--width", "3") == (0, f"x 3 2 {os.environ['KOLM_DATA_DIR']}/trusted\n")
    assert run("x", "--width", "5", "--height", "4", "--data-dir", "d") == (0, "x 5 4 d/trusted\n")
    assert run("x", "--width", "5", "--trusted", "mine") == (0, "x 5 2 mine\n")


def test_a_field_without_a_default_has_to_be_given_and_a_group_refuses_values_before_the_command_runs() -> None:
    assert run("x")[0] == 2
    assert run("x", "--width", "1")[0] == 2


def test_keys_are_those_that_were_named_then_those_beside_a_database_then_those_of_the_data_directory(
    tmp_path: Path,
) -> None:
    assert Paths(Path("d")).trusted_beside(tmp_path) == Path("d/trusted")
    (tmp_path / "trusted").mkdir()
    assert Paths(Path("d")).trusted_beside(tmp_path) == tmp_path / "trusted"
    assert Paths(Path("d"), Path("mine")).trusted_beside(tmp_path) == Path("mine")
    assert Paths(Path("d")).key("publisher") == Path("d/keys/publisher.pem")
    assert Paths(Path("d")).key("publisher", Path("p.pem")) == Path("p.pem")


def parsed(words: tuple[str, ...], *, quickly: bool) -> tuple[object, ...]:
    """The arguments of a command's call; or the error's kind and message."""
    called: list[object] = []
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(
        text: str,
        count: Annotated[int | None, typer.Option(min=1, max=9)] = None,
        share: Annotated[float, typer.Option(min=0.0)] = 0.5,
        place: Path = Path("here"),
        file: Annotated[Path | None, typer.Option(dir_okay=False)] = None,
        there: Annotated[Path | None, typer.Option(exists=True)] = None,
        stop: list[str] | None = None,
        numbers: list[int] | None = None,
        kind: Literal["a", "b"] = "a",
        loud: bool = False,
    ) -> None:
        called.extend((text, count, share, place, file, there, stop, numbers, kind, loud))

    made: Any = typer.main.get_command(app)
    if quickly:
        _coerced_quickly(made.params)
    try:
        made.main(list(words), standalone_mode=False)
    except Exception as error:
        return type(error), str(error)
    return tuple(called)


@pytest.mark.parametrize(
    "words",
    [
        ("x",),
        ("7",),
        ("x", "--count", "3", "--share", "0.25", "--place", "there", "--stop", "a", "--stop", "b", "--loud"),
        ("x", "--count", "3.0"),
        ("x", "--share", "1e-3"),
        ("x", "--share", ".5"),
        ("x", "--numbers", "1", "--numbers", "2"),
        ("x", "--numbers", "1", "--numbers", "z"),
        ("x", "--file", "/"),
        ("x", "--there", "/no/such/file"),
        ("x", "--there", "/"),
        ("x", "--kind", "b"),
        ("x", "--kind", "c"),
        (),
    ],
    ids=" ".join,
)
def test_a_value_is_what_typer_makes_of_it(words: tuple[str, ...]) -> None:
    found = parsed(words, quickly=True)
    assert str(found) == str(parsed(words, quickly=False))
    assert found


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        *(("--count", value, "from 1 to 9") for value in ("10", "-1", "1_0", "many")),
        *(("--share", value, "at least 0") for value in ("-0.5", ".")),
    ],
)
def test_a_number_that_is_refused_is_named_with_what_was_expected(flag: str, value: str, expected: str) -> None:
    kind, error = parsed(("x", flag, value), quickly=True)
    assert (kind, str(error).startswith(f"{flag}: is {value}; "), expected in str(error)) == (UsageError, True, True)
