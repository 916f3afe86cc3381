"""Write the table of public heads in docs/heads.md from the code.

python -m docs.heads        (or `make docs`)
"""

from __future__ import annotations

from pathlib import Path

from services.generation.target.naming.known_heads import KNOWN_HEADS

PAGE = Path(__file__).with_suffix(".md")
_BEGIN, _END = "<!-- public heads -->\n", "<!-- end of public heads -->"


def table() -> str:
    """A row for each head: base, name, kind, size and licence."""
    rows = ["| base | `--head` | kind | MB | licence |", "|---|---|---|---|---|"]
    for head in KNOWN_HEADS:
        size = f"{head.megabytes:,}" if head.megabytes else "–"
        rows.append(f"| {head.base} | `{head.name}` | `{head.kind}` | {size} | {head.licence or 'see its page'} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """The page with the present table. Raises ValueError if its marks are missing."""
    before, found, rest = text.partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if not (found and ended):
        raise ValueError(f"{PAGE}: expected {_BEGIN.strip()} and {_END}")
    return before + _BEGIN + table() + _END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
