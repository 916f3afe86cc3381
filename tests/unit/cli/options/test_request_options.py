"""Options of a request: constraints on the output, at most one, from files where they are long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.cli.failures.exits import UsageError
from services.cli.options.request_options import RequestOptions


def kind_and_text(**options: Any) -> tuple[str, str] | None:
    asked = RequestOptions(**options).sampling().constraint
    return None if asked is None else (asked.kind, asked.text)


def test_each_flag_is_a_constraint(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"type": "object"}')
    assert kind_and_text() is None
    assert kind_and_text(json_schema=file) == ("json", '{"type": "object"}')
    assert kind_and_text(grammar=file) == ("grammar", '{"type": "object"}')
    assert kind_and_text(json_object=True) == ("json_object", "")
    assert kind_and_text(regex="[0-9]") == ("regex", "[0-9]")
    assert kind_and_text(choice=["yes", "no"]) == ("choice", '["yes","no"]')


def test_two_constraints_or_a_file_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--json-object and --regex: expected one constraint"):
        kind_and_text(json_object=True, regex="a")
    with pytest.raises(UsageError, match=r"--json-schema: cannot read .*: No such file"):
        kind_and_text(json_schema=tmp_path / "missing")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"--grammar: .* is not UTF-8: byte 0"):
        kind_and_text(grammar=tmp_path / "bytes")
