"""Pages show the output of commands as `make outputs` writes it."""

from __future__ import annotations

import re

import pytest

from docs.outputs import PAGES, blocks, up
from tests.documented import ALL, DOCUMENTS, ROOT

LANGUAGES = {"python", "js", "java", "go", "json", "yaml", "mermaid"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_block_that_is_no_source_is_a_recording(document: str) -> None:
    fences = re.findall(r"^```(?!`)(.*)$", (ROOT / document).read_text("utf-8"), flags=re.MULTILINE)
    kinds = set(fences[::2]) - LANGUAGES
    assert kinds <= ({"text"} if ROOT / document in PAGES else set()), "docs/outputs.py writes blocks of text"


def test_every_recording_has_commands_and_what_they_print() -> None:
    for page in PAGES:
        assert blocks(page)
        for block in blocks(page):
            commands = [step for step in block if step.line.startswith("$ ")]
            assert commands
            assert all(step.output for step in commands)
            assert {step.line[2:] for step in commands} <= set(ALL)


def test_the_services_are_started_as_the_readme_says() -> None:
    assert up().startswith("$ kolm up ")
