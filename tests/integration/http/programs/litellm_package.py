"""Answers through LiteLLM's router: text whole and in pieces, an object by a schema, calls, a refusal."""

import json
import sys

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
print(json.dumps([whole == pieces, held["verdict"], named, refused]))
