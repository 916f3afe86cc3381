"""A conversation in the form whose canonical JSON a receipt commits to: a list of turns, each a few texts."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.encoding.canonical import canonical

Turn = dict[str, str]
"""`role` and `content`. An assistant's turn may have `tool_calls`, a tool's `tool_call_id`, and the first `tools`."""

MEMBERS = ("tool_call_id", "tool_calls", "tools")
"""Members of a turn beside role and content."""


def sent_turn(role: str, content: str, calls: Sequence[tuple[str, str, str]] = (), call_id: str = "") -> Turn:
    """`calls`: (id, name, arguments), written as a JSON array of such arrays. Empty ones are left out."""
    more = {"tool_calls": canonical([list(call) for call in calls]).decode() if calls else "", "tool_call_id": call_id}
    return {"role": role, "content": content} | {name: value for name, value in more.items() if value}


def sent_tools(tools: Sequence[tuple[str, str, str, bool]]) -> list[Turn]:
    """The turn before all others where there are tools, none otherwise: (name, description, parameters, strict)."""
    written = canonical([list(tool) for tool in tools]).decode()
    return [{"role": "tools", "content": "", "tools": written}] if tools else []
