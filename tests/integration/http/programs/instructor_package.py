"""Answers to Instructor: an object by a tool, and one by a schema."""

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")  # a model without training would go on with members of its own

    verdict: Literal["sun", "rain"]


plain = openai.OpenAI(base_url=sys.argv[1], api_key="any", max_retries=0)
found = []
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(plain, mode=mode)
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Sun?"}],
        response_model=Verdict,
        max_completion_tokens=120,
        max_retries=0,
    )
    found.append(answer.verdict)
print(json.dumps(found))
