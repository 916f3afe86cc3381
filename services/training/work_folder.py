"""The working folder of a run: its plan, its answers, its checkpoint. The same command in it goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from services.training.plan import Plan
from services.training.training_error import OutputInvalid


class WorkFolder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.checkpoint = path / "checkpoint.pt"
        self.train, self.held_out = path / "train", path / "held-out"
        self.snapshot = path / "head"

    def claim(self, plan: Plan) -> None:
        """Make the folder this plan's.

        Raises:
            OutputInvalid: it holds a run of another plan; the message names what differs.
        """
        path, document = self._path / "plan.json", plan.document()
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            differing = sorted(name for name in known.keys() | document.keys() if known.get(name) != document.get(name))
            if differing:
                raise OutputInvalid(
                    f"{self._path}: holds a run with other settings ({', '.join(differing)}); use the same ones to go "
                    "on, or another folder, or remove it"
                )
            return
        self._path.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def check_out(out: Path) -> None:
    """Raises OutputInvalid where there is something already; a head is never written over."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputInvalid(f"{out}: exists already; choose another folder or remove it")


def digest_of(paths: Sequence[Path]) -> str:
    """Of the files' contents, in order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256:{digest.hexdigest()}"


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """A crash at any point leaves the previous one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
