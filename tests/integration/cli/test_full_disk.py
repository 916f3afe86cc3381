"""A file that does not fit on the disk is named, and no part of it is left."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from services.cli.frame.exits import Failed
from services.cli.ledger.receipt_files import write_new


class _Full(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_said_and_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, mode: str) -> _Full:
        os.close(handle)
        return _Full()

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(Failed, match=r"cannot write .*receipt\.json: No space left on device"):
        write_new(tmp_path / "receipt.json", b"{}")
    assert list(tmp_path.iterdir()) == []
