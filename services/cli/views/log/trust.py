"""Trusted keys."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonpath, relpath
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.jobs.trust import TrustedKey
from services.cli.terminal.output import table

_SHOWN = len("ed25519:") + 12  # enough for `kolm trust remove`, and a line of 80 columns; --json has all of it


def keys_json(keys: Sequence[TrustedKey]) -> list[dict[str, Any]]:
    """One object for each key."""
    return [
        {
            "role": key.role,
            "key_id": key.key_id,
            "file": str(key.path),
            "retired": key.retired,
            "new": key.is_new,
            "scope": key.scope.to_document(),
        }
        for key in keys
    ]


def keys_view(keys: Sequence[TrustedKey]) -> RenderableType:
    """The folder, and one line for each key in it."""
    if not keys:
        return "no key is trusted"
    folder = commonpath([key.path.parent for key in keys])
    made = table("role", "key", "file", "for", whole=("key", "file"))
    for key in keys:
        said = ["retired"] if key.retired else []
        said += [f"{name} {value}" for name, values in key.scope.to_document().items() for value in values]
        made.add_row(key.role, f"{key.key_id[:_SHOWN]}…", relpath(key.path, folder), "\n".join(said))
    return Group(Text(f"in {folder}:"), made)


def added_view(keys: Sequence[TrustedKey]) -> RenderableType:
    """Keys that are trusted from now on, and keys that were before."""
    return Group(
        *(
            f"{key.key_id} {'may sign' if key.is_new else 'could sign before'} for {key.role}: {key.path}"
            for key in keys
        )
    )
