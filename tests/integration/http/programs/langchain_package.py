"""Answers to LangChain's client: text whole and in pieces, an object by a schema and by a tool, calls."""

import json
import sys
from typing import Literal

from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict


class Verdict(BaseModel):
    """What the sky is like."""

    model_config = ConfigDict(extra="forbid")  # a model without training would go on with members of its own

    verdict: Literal["sun", "rain"]


model = ChatOpenAI(
    model="tiny", base_url=sys.argv[1], api_key="any", max_retries=0, max_completion_tokens=120, seed=3, temperature=0
)
whole = model.invoke("Sun?")
pieces = "".join(piece.text for piece in model.stream("Sun?"))
found = [
    model.with_structured_output(Verdict, method=way).invoke("Sun?") for way in ("json_schema", "function_calling")
]
calls = model.bind_tools([Verdict], tool_choice="required", parallel_tool_calls=False).invoke("Sun?").tool_calls
print(json.dumps([whole.text == pieces, [each.verdict for each in found], [call["args"]["verdict"] for call in calls]]))
