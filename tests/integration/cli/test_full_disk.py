"""A file that does not fit on the disk is named, and no part of it is left."""

from __future__ import annotations

import io
import os
import resource
from pathlib import Path

import pytest

from services.cli.failures.exits import Failed
from services.cli.jobs.batch.results import Results
from services.cli.jobs.receipts.receipt_export import write_new

RESULT = {"id": "x", "response": {"status_code": 200, "request_id": "", "body": {"text": "x" * 2000}}, "error": None}


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


def test_a_batch_that_does_not_fit_says_so_and_goes_on_where_it_was(tmp_path: Path) -> None:
    path, (soft, hard) = tmp_path / "results.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with Results(path) as results:
            results.add(RESULT | {"custom_id": "a"})
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
            with pytest.raises(Failed, match=r"cannot write .*results\.jsonl: File too large"):
                results.add(RESULT | {"custom_id": "b"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with Results(path) as results:
        assert results.done == {"a"}
        results.add(RESULT | {"custom_id": "b"})
    with Results(path) as results:
        assert results.done == {"a", "b"}
