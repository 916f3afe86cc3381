"""Files that the documentation names in backticks exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "ledger/README.md"]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
PLACES = {"/" + path for path in TRACKED} | {f"/{parent}/" for path in TRACKED for parent in Path(path).parents}
TOP = "|".join(sorted({re.escape(path.partition("/")[0]) for path in TRACKED if "/" in path}))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_files_and_folders_exist(document: Path) -> None:
    """A source file may be named by the end of its path; a folder is named from the top."""
    text = document.read_text("utf-8")
    if "(superseded by " in text.split("\n", 1)[0]:
        pytest.skip("describes code that is gone")
    files = re.findall(r"`([\w./-]+\.(?:py|proto))`", text)
    folders = re.findall(rf"`((?:{TOP})/[\w./-]*)`", text)
    assert _missing([*files, *folders]) == []


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md", "ledger/README.md"])
def test_a_page_on_the_tree_names_nothing_that_is_gone(document: str) -> None:
    """Here folders, too, are named by the end of their paths, and what the drawing names is there."""
    text = (ROOT / document).read_text("utf-8")
    named = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:md|toml|yml))`", text)
    drawings = "".join(re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL))
    assert _missing([*named, *re.findall(rf"\b(?:{TOP})/[\w/]+", drawings)]) == []


def _missing(names: list[str]) -> list[str]:
    """Names that are the end of no path here."""
    ends = {"/" + name.rstrip("/") for name in names}
    return sorted(end for end in ends if not any(place.rstrip("/").endswith(end) for place in PLACES))
