"""Requests as the command line asks for them, and how fast answers came."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from services.cli.frame.exits import UsageError
from services.cli.generation.generate import speed
from services.cli.generation.request_options import RequestOptions
from services.client.generation.completion import Metrics


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


def metrics(first: float, decode: float) -> Metrics:
    return Metrics(
        num_drafts=0,
        num_draft_tokens=0,
        num_accepted_tokens=0,
        acceptance_rate=0.0,
        mean_acceptance_length=1.0,
        num_accepted_tokens_per_pos=(),
        target_passes=9,
        first_token_seconds=first,
        decode_seconds=decode,
        wall_clock_speedup=None,
        speedup_basis="",
        method="off",
        requested_method="off",
        fallback_reason=None,
        passes_by_method={"off": 9},
    )


@pytest.mark.parametrize(
    ("tokens", "first", "decode", "waited", "line"),
    [
        (8, 0.214, 1.811, 3.9, "8 tokens in 3.90 s (first after 0.21 s, 4 tokens/s for 1.81 s, receipt 1.88 s later)"),
        (48, 0.214, 1.811, None, "48 tokens in 2.02 s (first after 0.21 s, 26 tokens/s for 1.81 s)"),
        (1, 0.2, 0.0, 0.21, "1 token in 0.21 s (first after 0.20 s, receipt 0.01 s later)"),
        (5, 0.0, 2.0, 2.5, "5 tokens in 2.50 s (2 tokens/s for 2.00 s, receipt 0.50 s later)"),
        (0, 0.0, 0.0, 0.25, "0 tokens in 0.25 s"),
        (0, 0.0, 0.0, None, "0 tokens"),
    ],
)  # fmt: skip
def test_the_times_are_said(tokens: int, first: float, decode: float, waited: float | None, line: str) -> None:
    assert speed(tokens, metrics(first, decode), waited) == line


@pytest.mark.parametrize("first", [0.114, 0.115, 0.116, 0.333])
@pytest.mark.parametrize("decode", [1.004, 1.005, 1.006])
@pytest.mark.parametrize("rest", [0.0, 0.004, 0.006, 1.0])
def test_the_times_add_up_as_they_are_shown(first: float, decode: float, rest: float) -> None:
    line = speed(9, metrics(first, decode), first + decode + rest)
    whole, *parts = (round(100 * float(each)) for each in re.findall(r"([0-9.]+) s", line.replace("tokens/s", "")))
    assert whole == sum(parts)
