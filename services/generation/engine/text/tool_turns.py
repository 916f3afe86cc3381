"""Conversations with tools for chat templates that know none: as plain turns of system, user and assistant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from services.generation.engine.text.tool_calls import PLAIN

Turn = dict[str, Any]

_TOLD = """You can call functions. Each line describes one, as JSON:
<tools>
{tools}
</tools>
To call functions, write one such block for each call, with arguments that fit the function's parameters:
{example}
Their results follow within <tool_response></tool_response>."""
_EXAMPLE = PLAIN.written([("NAME", "{…}")])


def plain_turns(turns: Sequence[Turn], tools: Sequence[dict[str, Any]]) -> list[Turn]:
    """Calls as text, results as the user's, and the tools told in the first turn of system or user."""
    plain: list[Turn] = []
    for turn in turns:
        if turn["role"] != "tool":
            plain.append({"role": turn["role"], "content": _with_calls(turn)})
            continue
        result = f"<tool_response>\n{turn['content']}\n</tool_response>"
        if plain and plain[-1].get("results"):
            plain[-1]["content"] += "\n" + result
        else:
            plain.append({"role": "user", "content": result, "results": True})
    told = next((turn for turn in plain if turn["role"] in ("system", "user")), None)
    if tools and told is not None:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        about = _TOLD.format(tools=lines, example=_EXAMPLE)
        both = (told["content"], about) if told["role"] == "system" else (about, told["content"])
        told["content"] = "\n\n".join(text for text in both if text)
    return [{"role": turn["role"], "content": turn["content"]} for turn in plain]


def _with_calls(turn: Turn) -> str:
    calls = [
        (call["function"]["name"], json.dumps(call["function"]["arguments"], ensure_ascii=False))
        for call in turn.get("tool_calls", ())
    ]
    return "\n".join(text for text in (turn["content"], PLAIN.written(calls) if calls else "") if text)
