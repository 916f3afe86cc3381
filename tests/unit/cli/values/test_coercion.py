"""Values that are taken without typer's pydantic are what typer makes of them, and so are refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from services.cli.failures.exits import UsageError
from services.cli.values.coercion import coerced_quickly


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
        coerced_quickly(made.params)
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
    ("words", "said"),
    [
        (("--count", "10"), "--count: is 10; expected a whole number from 1 to 9"),
        (("--count", "-1"), "--count: is -1; expected a whole number from 1 to 9"),
        (("--count", "1_0"), "--count: is 1_0; expected a whole number from 1 to 9"),
        (("--count", "many"), "--count: is many; expected a whole number from 1 to 9"),
        (("--share", "-0.5"), "--share: is -0.5; expected a number at least 0"),
        (("--share", "."), "--share: is .; expected a number at least 0"),
    ],
)
def test_a_number_that_is_refused_is_named_with_what_was_expected(words: tuple[str, ...], said: str) -> None:
    assert parsed(("x", *words), quickly=True) == (UsageError, said)
