"""Whether a word on the command line means a head's folder or is a reference to a published head."""

from __future__ import annotations

from pathlib import Path

from services.cli.exits import UsageError


def folder_of(head: str) -> Path | None:
    """The folder that `head` names, None for a reference. Raises UsageError where it can be neither.

    A reference holds no slash. A word without one is a folder only where a head is in there: a head that is called like
    some directory here (`demo`, in this repository) is found by its name.
    """
    folder = Path(head)
    if "/" in head and not folder.is_dir():
        raise UsageError(f"there is no folder {head}", "a reference is a name, name@sha256:<digits> or cidv1:sha256:…")
    return folder if "/" in head or (folder / "config.json").is_file() else None
