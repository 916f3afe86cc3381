"""Messages of errors for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.runtime.process import reason


def test_an_error_of_the_system_says_the_file_and_the_cause(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "nothing").read_bytes()
    assert reason(missing.value) == f"{tmp_path / 'nothing'}: No such file or directory"


def test_any_other_error_speaks_for_itself() -> None:
    assert reason(ValueError("expected a port")) == "expected a port"
    assert reason(OSError("short write")) == "short write"
    assert reason(OSError(28, "No space left on device")) == "No space left on device"
