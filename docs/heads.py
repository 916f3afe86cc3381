"""Write the table of public heads in docs/heads.md from the code.

python -m docs.heads        (or `make docs`)
"""

from __future__ import annotations

from pathlib import Path

from services.generation.target.naming.known_heads import KNOWN_HEADS, KnownHead

PAGE = Path(__file__).with_suffix(".md")
_BEGIN, _END = "<!-- public heads -->\n", "<!-- end of public heads -->"


def table() -> str:
    """A row for each base, and its heads in the order of preference."""
    rows = ["| base | heads (kind, size, licence) |", "|---|---|"]
    for base in dict.fromkeys(head.base for head in KNOWN_HEADS):
        rows.append(f"| {base} | {', '.join(map(_named, (head for head in KNOWN_HEADS if head.base == base)))} |")
    return "\n".join(rows) + "\n"


def _named(head: KnownHead) -> str:
    return f"`{head.name}` ({head.kind}, {head.size}, {head.licence or 'unknown'})"


def page(text: str) -> str:
    """The page with the present table. Raises ValueError if its marks are missing."""
    before, found, rest = text.partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if not (found and ended):
        raise ValueError(f"{PAGE}: expected {_BEGIN.strip()} and {_END}")
    return before + _BEGIN + table() + _END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
