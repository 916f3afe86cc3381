"""The page about OpenAI's API names what bodies may say, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import AfterValidator, BaseModel

from services.http.completions import ChatFields, TextFields
from services.http.fields import only
from services.http.response_fields import ResponseFields

PAGE = (Path(__file__).parents[3] / "docs/openai.md").read_text()
TABLE = PAGE.split("## What a request may say")[1].split("\nRefused with 400:")[0]
CHECK = only().func.__qualname__


def taken(*bodies: type[BaseModel]) -> set[str]:
    """The members that have an effect: not those of which only neutral values pass."""
    return {
        field.alias or name
        for body in bodies
        for name, field in body.model_fields.items()
        if not any(isinstance(each, AfterValidator) and each.func.__qualname__ == CHECK for each in field.metadata)
    }


def test_every_member_that_is_taken_is_named() -> None:
    named = set(re.findall(r"`([a-z_]+)", PAGE))
    assert taken(ChatFields, TextFields, ResponseFields) - named == {"reasoning"}, "an object of which nothing is taken"


def test_every_member_of_the_table_is_taken() -> None:
    rows = (line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `"))
    table = {name for row in rows for name in re.findall(r"`([a-z_]+)", row)}
    assert table - taken(ChatFields, TextFields, ResponseFields) == {
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    }
