"""docs/adr/README.md lists every number; a superseded page says so in its first line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "docs" / "adr"
PAGES = {path.name[:4]: path for path in sorted(FOLDER.glob("[0-9]*.md")) if path.name != "0000-template.md"}
ROWS = re.findall(
    r"^\| \[?(\d{4})\]?(?:\((\S+)\))? \| (.+) \| (.+) \|$", (FOLDER / "README.md").read_text("utf-8"), re.M
)


def test_every_number_has_one_line() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, int(max(PAGES)) + 1))


def test_every_page_is_linked() -> None:
    assert {number: file for number, file, *_ in ROWS if file} == {number: path.name for number, path in PAGES.items()}


@pytest.mark.parametrize("number", PAGES)
def test_title_and_status_of_the_page_are_those_of_the_list(number: str) -> None:
    first, _, status, *_ = PAGES[number].read_text("utf-8").splitlines()
    (listed,) = [(title, state) for listed, _, title, state in ROWS if listed == number]
    successor = re.match(r"superseded by (\d{4})", listed[1])
    assert first == f"# {number}: {listed[0]}" + (f" (superseded by {successor[1]})" if successor else "")
    assert re.sub(r"\[(\d{4})\]\(\S+\)", r"\1", status).startswith(f"Status: {listed[1]}")
