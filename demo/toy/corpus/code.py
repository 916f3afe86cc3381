"""Domain `code`: the running Python's own standard library (PSF licence)."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from demo.toy.corpus.dialogue import BOUNDARY, Split

SKIPPED_FOLDERS = frozenset(
    {"site-packages", "test", "tests", "idlelib", "idle_test", "encodings", "pydoc_data", "__pycache__"}
)
LARGEST_FILE_BYTES = 130_000
"""Beyond this size the library has tables and generated code rather than code to learn from."""
HELD_OUT_SHARE = 24
"""One file in this many is held out."""


def documents(split: Split) -> Iterator[str]:
    """One document a file, in sorted order."""
    for path in files(split):
        yield BOUNDARY + path.read_text(encoding="utf-8")


def files(split: Split) -> list[Path]:
    """The library's readable `.py` files that belong to `split`, sorted by their path inside the library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return [p for p in sorted(root.rglob("*.py")) if _is_wanted(p, root) and _split_of(p, root) == split]


def _is_wanted(path: Path, root: Path) -> bool:
    if SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
        return False
    if not 0 < path.stat().st_size <= LARGEST_FILE_BYTES:
        return False
    return not _looks_like_a_table(path)


def _looks_like_a_table(path: Path) -> bool:
    """True for non-UTF-8 files and for files that are mostly literals."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return True
    literals = sum(line.strip()[:1] in {"'", '"', "(", "\\"} and line.rstrip().endswith(",") for line in lines)
    return literals > 0.4 * len(lines)


def _split_of(path: Path, root: Path) -> Split:
    """A file's split hangs on its name alone, so that it stays the same from one Python version to the next."""
    digest = hashlib.sha256(path.relative_to(root).as_posix().encode()).digest()
    return "held_out" if int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0 else "train"
