"""What prompts look like, by their text alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.auto.resemblance import CODE, OTHER, RAG, RESEMBLANCES, STRUCTURED, of_tokens
from services.generation.drafting.auto.resemblance import resemblance as looks_like

TOOL = {
    "name": "weather", "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}  # fmt: skip
PASSAGE = "The bridge was opened in 1894 and has been rebuilt twice since, the second time after a flood. " * 4
PYTHON = "import os\n\n\ndef size(path):\n    if not path:\n        return 0\n    return os.stat(path).st_size\n"
C = '#include <stdio.h>\n\nint main(void)\n{\n\tputs("hello");\n\treturn 0;\n}\n'
GO = 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("hello")\n}\n'
LETTER = (
    "Dear Ms Kim,\nthank you for your answer.\nWe shall come on Monday.\nPlease tell your colleagues.\nYours,\nAnna"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"You can call these tools.\n{json.dumps(TOOL)}\nWhat is the weather in Kyoto?", STRUCTURED),
        (f"Extract the fields.\n{json.dumps(TOOL, indent=2)}", STRUCTURED),
        (PYTHON, CODE),
        (C, CODE),
        (GO, CODE),
        (f"What does this do?\n```python\n{PYTHON}```\n", CODE),
        (f"{PASSAGE}\n\nWhen was it opened?", RAG),
        (f"Use the context.\n{PASSAGE}\n{PASSAGE}\nQuestion: who rebuilt it?", RAG),
        ("Good morning, my printer has a problem.\nI see. Is it switched on?\nYes.", OTHER),
        (LETTER, OTHER),
        ('He said "no": that was all.', OTHER),
        ("", OTHER),
        ("\n\n  \n", OTHER),
    ],
)
def test_a_prompt_is_told_by_what_stands_in_it(text: str, expected: str) -> None:
    assert looks_like(text) == expected


@given(st.text(max_size=2000))
def test_any_text_looks_like_something(text: str) -> None:
    assert looks_like(text) in RESEMBLANCES


def test_of_a_long_prompt_both_ends_are_looked_at() -> None:
    seen: list[int] = []

    def decode(tokens: object) -> str:
        seen.extend(tokens)  # type: ignore[call-overload]
        return PYTHON

    assert of_tokens(range(5000), decode) == CODE
    assert seen == [*range(256), *range(4744, 5000)]
    seen.clear()
    of_tokens(range(512), decode)
    assert seen == list(range(512))
