"""Kinds of folders that settings and command lines name, told by a file that they hold. Imports next to nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FolderKind:
    expected: str
    holding: str

    def check(self, folder: Path) -> Path:
        """The folder. Raises ValueError where it lacks the file."""
        if not (folder / self.holding).is_file():
            raise ValueError(f"{folder}: no {self.holding}; expected {self.expected}")
        return folder


STORE = FolderKind("a datastore", "manifest.json")
HEAD = FolderKind("a head's folder", "config.json")
ADAPTER = FolderKind("an adapter in peft's layout, as NAME=DIRECTORY", "adapter_config.json")
