"""Write what the pages show of the output of commands, by running these: `python -m docs.outputs` (or `make outputs`).

`docs/first-minutes.txt` is a recording from its first `$ ` on. In Markdown a block ```text is one; the services that it
asks are those of the README's `kolm up`. Tests run the same lines and compare the shapes of what they print.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

from docs.session import ROOT, Step, recorded, run

FIRST_MINUTES = ROOT / "docs" / "first-minutes.txt"
PAGES = (ROOT / "README.md", ROOT / "docs" / "structured-output.md")
"""Asked in this order, of the same services."""
_BLOCK = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(\w+\.json)`:\n\n```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NARROW, _WIDE = 80, 100
_LONGEST = 140  # characters of a line, where a command breaks none


def blocks(page: Path) -> list[list[Step]]:
    """The recorded output of a page, block by block."""
    return [recorded(block) for block in _BLOCK.findall(page.read_text("utf-8"))]


def steps(pages: Sequence[Path] = PAGES) -> list[Step]:
    """All of it."""
    return [step for page in pages for block in blocks(page) for step in block]


def up() -> str:
    """How the README starts the services."""
    found = re.search(r"^ {4}(kolm up .*)$", PAGES[0].read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return f"$ {found[1]}"


def write_files(folder: Path) -> None:
    """The files that pages show before commands that read them, as "`person.json`:" and a block of JSON."""
    for page in PAGES:
        for name, text in _FILE.findall(page.read_text("utf-8")):
            (folder / name).write_text(text, "utf-8")


def _printed(steps: Sequence[Step], longest: int = 0) -> str:
    lines = [each.rstrip() for step in steps for each in (step.line, *step.output.splitlines())]
    shown = [textwrap.fill(each, longest) if longest and not each.startswith("$ ") else each for each in lines]
    return "\n".join(shown) + "\n"


def _write_first_minutes(folder: Path) -> None:
    text = FIRST_MINUTES.read_text("utf-8")
    opening = re.split(r"^\$ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    now = run([step.line for step in recorded(text)], folder, _NARROW)
    FIRST_MINUTES.write_text(opening + _printed(list(now)), "utf-8")


def _write_pages(folder: Path) -> None:
    write_files(folder)
    lines = [step.line for step in steps()]
    _, *now = run([up(), *lines], folder, _WIDE)
    outputs = iter(now)
    for page in PAGES:
        new = iter([_printed([next(outputs) for _ in block], _LONGEST) for block in blocks(page)])
        page.write_text(_BLOCK.sub(lambda _: next(new), page.read_text("utf-8")), "utf-8")  # noqa: B023


def main() -> None:
    """Write all of them anew."""
    for write in (_write_pages, _write_first_minutes):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))


if __name__ == "__main__":
    main()
