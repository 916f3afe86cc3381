"""Answers through LiteLLM's router: text whole and in pieces, an object by a schema, calls, a refusal; and the receipts
that the callback of docs/openai.md keeps.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import litellm

place = {"model": "openai/tiny", "api_base": sys.argv[1], "api_key": "any", "max_retries": 0}
router = litellm.Router([{"model_name": "tiny", "litellm_params": place}], num_retries=0)
schema = {
    "type": "object",
    "properties": {"verdict": {"enum": ["sun", "rain"]}},
    "required": ["verdict"],
    "additionalProperties": False,
}
asked = {"model": "tiny", "messages": [{"role": "user", "content": "Sun?"}], "max_tokens": 120, "seed": 3}
whole = router.completion(**asked).choices[0].message.content
pieces = "".join(each.choices[0].delta.content or "" for each in router.completion(**asked, stream=True))
form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema, "strict": True}}
held = json.loads(router.completion(**asked, response_format=form).choices[0].message.content)
tool = {"type": "function", "function": {"name": "judge", "parameters": schema}}
calls = router.completion(**asked, tools=[tool], tool_choice="required").choices[0].message.tool_calls
named = [json.loads(call.function.arguments)["verdict"] for call in calls]
try:
    refused = router.completion(**asked | {"messages": [{"role": "user", "content": "word " * 999}]}) and ""
except Exception as error:  # by this error a router asks a model with a longer context
    refused = type(error).__name__

page = (Path(__file__).parents[4] / "docs" / "openai.md").read_text()
(block,) = (each.partition("```")[0] for each in page.split("```python\n") if "KolmReceipts" in each)
exec(block, defined := {})
litellm.callbacks = [defined["log"]]


def kept() -> list[list[str]]:
    """The receipts of each call in the callback's file."""
    lines = Path("receipts.jsonl")
    return [json.loads(line)["receipts"] for line in lines.read_text().splitlines()] if lines.exists() else []


async def ask() -> list[str]:
    """The receipts of an answer; a stream follows."""
    answer = await router.acompletion(**asked)
    receipts = [each["receipt_id"] for each in answer.kolm["receipts"]]
    async for _ in await router.acompletion(**asked, stream=True):
        pass
    for _ in range(300):  # the callback runs after the answer
        if len(kept()) == 2:
            break
        await asyncio.sleep(0.1)
    return receipts


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    first, logged = asyncio.run(ask()), kept()
    os.chdir("/")
print(
    json.dumps([whole == pieces, held["verdict"], named, refused, first == logged[0], [len(each) for each in logged]])
)
