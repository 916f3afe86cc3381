"""Checkpoints on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """A crash at any point leaves the previous one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
