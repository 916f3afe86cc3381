"""docs/first-minutes.txt: its commands are run, and what they print has the shape that the file shows.

`test_documented_commands.py` does the same with the outputs in Markdown.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.outputs import FIRST_MINUTES
from docs.session import recorded, run, shape


def test_the_recording_is_what_the_commands_print(tmp_path: Path) -> None:
    steps = recorded(FIRST_MINUTES.read_text("utf-8"))
    assert steps[0].line.startswith("$ kolm up")
    for step, now in zip(steps, run([step.line for step in steps], tmp_path, 80), strict=True):
        assert (now.line, shape(now.output)) == (step.line, shape(step.output))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "24 tokens in 0.33 s (first after 0.1 s, 9 tokens/s for 1 s)",
            "7 tokens in 1.5 s (95 tokens/s for 2 s)",
            True,
        ),
        ("entry 2 of 8", "entry 3 of 19", True),
        ("method eagle3: 1.25 tokens per pass, 3 of 9 drafted tokens accepted, 1.25× off", "method eagle3", True),
        ("method eagle3: 1.25 tokens per pass", "method rest: 1.25 tokens per pass", False),
        ("sha256:" + 20 * "a" + "\n     1f2e", "sha256:" + 20 * "b" + "\n     7", True),
        ("receipt 01a206b2-47f7-7a6f-949d-5ca9f46781ce", "receipt 01a206b2-47f7-7a6f-949d-000000000000", True),
        ("verdict EXACT", "verdict DEVIATION", False),
    ],
)
def test_shapes_forget_numbers_ids_and_line_breaks_and_no_word(one: str, other: str, same: bool) -> None:
    assert (shape(one) == shape(other)) is same
