"""Copy rows of the table of lies in docs/guarantees.md into README.md.

python -m docs.lies        (or `make docs`)
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
_SOURCE = ROOT / "docs" / "guarantees.md"
_HEAD = "| an operator who | its customer"
_SHOWN = (
    "never logs a request",
    "serves other tokens, or a faulty kernel's",
    "replaces the model after signing",
    "changes the prompt before the model sees it",
    "shows two histories",
)
_BLOCK = re.compile(r"(<!-- lies -->\n).*?(<!-- end -->)", re.DOTALL)


def readme() -> str:
    """README.md with these rows. Raises KeyError for a row that docs/guarantees.md lacks."""
    lines = _SOURCE.read_text("utf-8").partition(_HEAD)[2].partition("\n\n")[0].splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}
    table = "\n".join([_HEAD + lines[0], lines[1], *(rows[lie] for lie in _SHOWN)])
    return _BLOCK.sub(lambda block: f"{block[1]}{table}\n{block[2]}", PAGE.read_text("utf-8"))


if __name__ == "__main__":
    PAGE.write_text(readme(), encoding="utf-8")
